import unittest

from template import fill


class Fill(unittest.TestCase):
    def test_a_field(self):
        self.assertEqual(fill("hello {who}!", {"who": "you"}), "hello you!")

    def test_fields_side_by_side(self):
        self.assertEqual(fill("{a}{b}", {"a": 1, "b": 2}), "12")

    def test_a_default(self):
        self.assertEqual(fill("{a|none}", {}), "none")

    def test_braces(self):
        self.assertEqual(fill("{{x}}", {}), "{x}")

    def test_faults(self):
        with self.assertRaises(KeyError):
            fill("{a}", {})
        with self.assertRaises(ValueError):
            fill("{a", {})
        with self.assertRaises(ValueError):
            fill("a}", {})


if __name__ == "__main__":
    unittest.main()

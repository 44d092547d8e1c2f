import unittest

from ini import read


class Ini(unittest.TestCase):
    def test_a_section(self):
        self.assertEqual(read("[disk]\nsize = 5\n"), {"": {}, "disk": {"size": "5"}})

    def test_keys_without_a_section(self):
        self.assertEqual(read("a=1\n"), {"": {"a": "1"}})

    def test_comments_and_empty_lines(self):
        self.assertEqual(read("# one\n\n; two\n"), {"": {}})

    def test_a_value_may_hold_an_equals_sign(self):
        self.assertEqual(read("k = a=b")[""], {"k": "a=b"})

    def test_faults_name_their_line(self):
        with self.assertRaisesRegex(ValueError, "line 2"):
            read("a=1\nnothing\n")
        with self.assertRaisesRegex(ValueError, "line 1"):
            read("[open\n")


if __name__ == "__main__":
    unittest.main()

import unittest

from order import order


class Order(unittest.TestCase):
    def test_a_chain(self):
        self.assertEqual(order({"c": ["b"], "b": ["a"], "a": []}), ["a", "b", "c"])

    def test_choices_are_alphabetical(self):
        self.assertEqual(order({"z": [], "m": [], "a": ["z"]}), ["m", "z", "a"])

    def test_a_circle_is_refused(self):
        with self.assertRaises(ValueError):
            order({"a": ["b"], "b": ["a"], "c": []})

    def test_an_unknown_name_is_refused(self):
        with self.assertRaises(KeyError):
            order({"a": ["x"]})

    def test_a_need_named_twice_counts_once(self):
        self.assertEqual(order({"b": ["a", "a"], "a": []}), ["a", "b"])


if __name__ == "__main__":
    unittest.main()

import unittest

from runs import decode, encode


class Runs(unittest.TestCase):
    def test_long_runs(self):
        self.assertEqual(encode("aaaabbb"), "4a3b")

    def test_pairs(self):
        self.assertEqual(encode("xxyz"), "2xyz")

    def test_single_signs(self):
        self.assertEqual(encode("abc"), "abc")
        self.assertEqual(decode("abc"), "abc")

    def test_back(self):
        self.assertEqual(decode("12x3y"), "x" * 12 + "yyy")

    def test_refusals(self):
        with self.assertRaises(ValueError):
            encode("a1")
        with self.assertRaises(ValueError):
            decode("a3")


if __name__ == "__main__":
    unittest.main()

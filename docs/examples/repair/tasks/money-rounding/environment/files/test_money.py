import unittest

from money import parse, show, split


class Money(unittest.TestCase):
    def test_amounts(self):
        self.assertEqual(parse("12.5"), 1250)
        self.assertEqual(parse("-3.25"), -325)
        self.assertEqual(parse("7"), 700)

    def test_half_a_cent_is_rounded_up(self):
        self.assertEqual(parse("0.125"), 13)

    def test_no_amount(self):
        with self.assertRaises(ValueError):
            parse("ten")

    def test_shares_add_up(self):
        self.assertEqual(split(100, 3), [34, 33, 33])

    def test_show(self):
        self.assertEqual(show(-5), "-0.05")


if __name__ == "__main__":
    unittest.main()

import unittest

from report import render


class Report(unittest.TestCase):
    def test_columns_are_as_wide_as_their_widest_cell(self):
        self.assertEqual(render([["a", "x"], ["bcd", "y"]]), ["a    x", "bcd  y"])

    def test_numbers_are_on_the_right(self):
        self.assertEqual(render([["n", 5], ["m", 123]]), ["n    5", "m  123"])

    def test_columns_are_clipped(self):
        self.assertEqual(render([["abcdef", 1]], widths=[4, 9]), ["abc.  1"])

    def test_no_rows(self):
        self.assertEqual(render([]), [])


if __name__ == "__main__":
    unittest.main()

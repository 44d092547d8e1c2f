import unittest

from roman import from_roman, to_roman


class Roman(unittest.TestCase):
    def test_small_numbers(self):
        self.assertEqual([to_roman(n) for n in (1, 3, 4, 9)], ["I", "III", "IV", "IX"])

    def test_forties(self):
        self.assertEqual(to_roman(44), "XLIV")
        self.assertEqual(from_roman("XLIX"), 49)

    def test_years(self):
        self.assertEqual(to_roman(1994), "MCMXCIV")
        self.assertEqual(from_roman("MMXXVI"), 2026)

    def test_bounds(self):
        for number in (0, 4000):
            with self.assertRaises(ValueError):
                to_roman(number)

    def test_bad_numerals(self):
        for text in ("", "IIII", "VX", "ABC"):
            with self.assertRaises(ValueError):
                from_roman(text)


if __name__ == "__main__":
    unittest.main()

import unittest

from units import convert_length, convert_temperature


class Units(unittest.TestCase):
    def test_lengths(self):
        self.assertEqual(convert_length(1, "mi", "km"), 1.609344)
        self.assertEqual(convert_length(12, "in", "ft"), 1.0)

    def test_water_boils(self):
        self.assertEqual(convert_temperature(212, "F", "C"), 100.0)
        self.assertEqual(convert_temperature(100, "C", "F"), 212.0)

    def test_water_freezes(self):
        self.assertEqual(convert_temperature(32, "F", "C"), 0.0)
        self.assertEqual(convert_temperature(273.15, "K", "F"), 32.0)

    def test_unknown_units(self):
        with self.assertRaises(ValueError):
            convert_length(1, "m", "parsec")
        with self.assertRaises(ValueError):
            convert_temperature(1, "C", "R")


if __name__ == "__main__":
    unittest.main()

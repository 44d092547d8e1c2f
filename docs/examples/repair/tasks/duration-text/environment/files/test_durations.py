import unittest

from durations import parse, show


class Durations(unittest.TestCase):
    def test_parse(self):
        self.assertEqual(parse("90s"), 90000)
        self.assertEqual(parse("1h30m"), 5400000)
        self.assertEqual(parse("1s250ms"), 1250)

    def test_units_go_from_large_to_small(self):
        with self.assertRaises(ValueError):
            parse("5s1h")

    def test_no_unit(self):
        with self.assertRaises(ValueError):
            parse("15")

    def test_no_number(self):
        with self.assertRaises(ValueError):
            parse("h")

    def test_show(self):
        self.assertEqual(show(5400000), "1h30m")
        self.assertEqual(show(0), "0s")


if __name__ == "__main__":
    unittest.main()

import unittest

from calendar_days import day_of_year, days_between, days_in_month, is_leap


class Days(unittest.TestCase):
    def test_leap_years(self):
        self.assertTrue(is_leap(2024))
        self.assertFalse(is_leap(2023))
        self.assertFalse(is_leap(1900))

    def test_the_year_2000_had_a_leap_day(self):
        self.assertEqual(days_in_month(2000, 2), 29)

    def test_day_of_year(self):
        self.assertEqual(day_of_year(2023, 3, 1), 60)
        self.assertEqual(day_of_year(2024, 12, 31), 366)

    def test_days_between(self):
        self.assertEqual(days_between((2023, 12, 31), (2024, 3, 1)), 61)
        self.assertEqual(days_between((2024, 3, 1), (2023, 12, 31)), -61)


if __name__ == "__main__":
    unittest.main()

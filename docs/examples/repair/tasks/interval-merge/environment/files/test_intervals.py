import unittest

from intervals import covered, gaps, merge


class Intervals(unittest.TestCase):
    def test_overlapping_intervals_join(self):
        self.assertEqual(merge([[5, 9], [1, 6]]), [[1, 9]])

    def test_touching_intervals_join(self):
        self.assertEqual(merge([[1, 3], [4, 6]]), [[1, 6]])

    def test_contained_interval_vanishes(self):
        self.assertEqual(merge([[1, 9], [2, 3]]), [[1, 9]])

    def test_covered_counts_each_number_once(self):
        self.assertEqual(covered([[1, 4], [3, 6]]), 6)

    def test_gaps_between(self):
        self.assertEqual(gaps([[3, 4]], 1, 6), [[1, 2], [5, 6]])


if __name__ == "__main__":
    unittest.main()

import unittest

from search import count, first_at_least, nearest


class Search(unittest.TestCase):
    def test_finds_the_first_of_equals(self):
        self.assertEqual(first_at_least([1, 3, 3, 3, 9], 3), 1)

    def test_all_places_of_a_small_list(self):
        self.assertEqual([first_at_least([2, 4, 6], n) for n in range(1, 8)], [0, 0, 1, 1, 2, 2, 3])

    def test_an_empty_list(self):
        self.assertEqual(first_at_least([], 5), 0)

    def test_count(self):
        self.assertEqual(count([1, 2, 2, 2, 5], 2), 3)

    def test_nearest(self):
        self.assertEqual(nearest([1, 5, 9], 6), 5)
        self.assertEqual(nearest([1, 5], 3), 1)


if __name__ == "__main__":
    unittest.main()

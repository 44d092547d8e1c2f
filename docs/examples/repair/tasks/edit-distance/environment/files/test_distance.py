import unittest

from distance import closest, distance


class Distance(unittest.TestCase):
    def test_known_distances(self):
        self.assertEqual(distance("kitten", "sitting"), 3)
        self.assertEqual(distance("flaw", "lawn"), 2)

    def test_equal_texts(self):
        self.assertEqual(distance("same", "same"), 0)

    def test_empty_texts(self):
        self.assertEqual(distance("", "abc"), 3)
        self.assertEqual(distance("abc", ""), 3)

    def test_closest(self):
        self.assertEqual(closest("tiemout", ["time", "timeout", "mount"]), "timeout")
        self.assertIsNone(closest("x", ["timeout"]))


if __name__ == "__main__":
    unittest.main()

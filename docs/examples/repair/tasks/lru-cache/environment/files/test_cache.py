import unittest

from cache import Cache


class Eviction(unittest.TestCase):
    def test_keeps_up_to_capacity(self):
        cache = Cache(2)
        self.assertIsNone(cache.put("a", 1))
        self.assertIsNone(cache.put("b", 2))
        self.assertEqual(cache.keys(), ["a", "b"])

    def test_evicts_the_oldest(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertEqual(cache.put("c", 3), "a")
        self.assertEqual(cache.keys(), ["b", "c"])

    def test_a_read_keeps_an_entry(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertEqual(cache.get("a"), 1)
        cache.put("c", 3)
        self.assertIsNone(cache.get("b"))

    def test_capacity_is_checked(self):
        with self.assertRaises(ValueError):
            Cache(0)


if __name__ == "__main__":
    unittest.main()

import unittest

from paths import inside, normalise


class Paths(unittest.TestCase):
    def test_dots_and_empty_parts_go(self):
        self.assertEqual(normalise("a//b/./c/"), "a/b/c")

    def test_parents_cancel(self):
        self.assertEqual(normalise("/a/b/../c"), "/a/c")

    def test_the_root_is_its_own_parent(self):
        self.assertEqual(normalise("/../a"), "/a")

    def test_inside(self):
        self.assertTrue(inside("/srv/data/x", "/srv/data"))
        self.assertFalse(inside("/srv/database", "/srv/data"))
        self.assertFalse(inside("/srv/data/../etc", "/srv/data"))


if __name__ == "__main__":
    unittest.main()

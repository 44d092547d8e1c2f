import unittest

from brackets import balanced, depth


class Brackets(unittest.TestCase):
    def test_matching(self):
        self.assertTrue(balanced("f(a[1], {2})"))

    def test_wrong_kind(self):
        self.assertFalse(balanced("(]"))

    def test_never_closed(self):
        self.assertFalse(balanced("((a)"))

    def test_never_opened(self):
        self.assertFalse(balanced("a)"))

    def test_quoted_brackets_do_not_count(self):
        self.assertTrue(balanced("'(' + x"))
        self.assertFalse(balanced("'("))

    def test_depth(self):
        self.assertEqual(depth("(a(b)(c))"), 2)


if __name__ == "__main__":
    unittest.main()

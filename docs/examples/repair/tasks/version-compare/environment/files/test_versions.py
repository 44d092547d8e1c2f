import unittest

from versions import compare, newest


class Versions(unittest.TestCase):
    def test_small_numbers(self):
        self.assertEqual(compare("1.2", "1.3"), -1)
        self.assertEqual(compare("2.0", "1.9"), 1)

    def test_ten_comes_after_nine(self):
        self.assertEqual(compare("1.10", "1.9"), 1)

    def test_trailing_zeros_do_not_count(self):
        self.assertEqual(compare("1.0", "1"), 0)

    def test_a_pre_release_comes_first(self):
        self.assertEqual(compare("2.0-rc1", "2.0"), -1)
        self.assertEqual(newest(["2.0-rc2", "2.0-rc1", "1.9"]), "2.0-rc2")


if __name__ == "__main__":
    unittest.main()

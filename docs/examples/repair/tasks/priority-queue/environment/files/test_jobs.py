import unittest

from jobs import Jobs


def jobs(*given):
    made = Jobs()
    for name, priority in given:
        made.add(name, priority)
    return made


class Priorities(unittest.TestCase):
    def test_the_larger_priority_goes_first(self):
        self.assertEqual(jobs(("low", 1), ("high", 90), ("middle", 50)).drain(), ["high", "middle", "low"])

    def test_equal_priorities_keep_their_order(self):
        self.assertEqual(jobs(("b", 5), ("a", 5), ("c", 5)).drain(), ["b", "a", "c"])

    def test_nothing_left(self):
        self.assertIsNone(Jobs().next())

    def test_bounds(self):
        with self.assertRaises(ValueError):
            Jobs().add("x", 101)


if __name__ == "__main__":
    unittest.main()

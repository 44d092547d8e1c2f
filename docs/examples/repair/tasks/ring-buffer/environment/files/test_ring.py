import unittest

from ring import Ring


def ring(size, *values):
    made = Ring(size)
    for value in values:
        made.push(value)
    return made


class Rings(unittest.TestCase):
    def test_holds_values_in_order(self):
        self.assertEqual(ring(3, 1, 2).values(), [1, 2])

    def test_the_oldest_is_overwritten(self):
        self.assertEqual(ring(3, 1, 2, 3, 4).values(), [2, 3, 4])

    def test_pop_gives_the_oldest(self):
        made = ring(3, 1, 2)
        self.assertEqual(made.pop(), 1)
        self.assertEqual(made.values(), [2])

    def test_pop_past_the_end_of_the_slots(self):
        made = ring(3, 1, 2, 3)
        self.assertEqual([made.pop(), made.pop(), made.pop()], [1, 2, 3])

    def test_push_after_pop(self):
        made = ring(3, 1)
        made.pop()
        made.push(2)
        self.assertEqual(made.values(), [2])
        self.assertEqual(made.start, 1)

    def test_an_empty_buffer_has_no_oldest(self):
        with self.assertRaises(IndexError):
            ring(1).pop()


if __name__ == "__main__":
    unittest.main()

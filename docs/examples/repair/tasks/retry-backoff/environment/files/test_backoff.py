import unittest

from backoff import Retry, delay, schedule


class Backoff(unittest.TestCase):
    def test_the_delay_doubles(self):
        self.assertEqual([delay(n) for n in (1, 2, 3)], [1.0, 2.0, 4.0])

    def test_no_delay_after_the_last_try(self):
        self.assertEqual(schedule(3), [1.0, 2.0])

    def test_tries_run_out(self):
        retry = Retry(2)
        self.assertEqual(retry.failed(), 1.0)
        self.assertIsNone(retry.failed())

    def test_counting_starts_at_one(self):
        with self.assertRaises(ValueError):
            delay(0)


if __name__ == "__main__":
    unittest.main()

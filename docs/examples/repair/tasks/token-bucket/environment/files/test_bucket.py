import unittest

from bucket import Bucket


class Buckets(unittest.TestCase):
    def test_a_full_bucket_can_be_emptied(self):
        self.assertTrue(Bucket(3, 1).take(3, 0))

    def test_an_empty_bucket_refuses(self):
        bucket = Bucket(3, 1)
        bucket.take(2, 0)
        self.assertFalse(bucket.take(2, 0))

    def test_tokens_come_back(self):
        bucket = Bucket(10, 2)
        bucket.take(9, 0)
        self.assertTrue(bucket.take(6, 3))

    def test_never_above_the_capacity(self):
        bucket = Bucket(2, 1)
        bucket.refill(100)
        self.assertEqual(bucket.tokens, 2)

    def test_time_never_runs_back(self):
        bucket = Bucket(5, 1)
        bucket.take(4, 10)
        bucket.refill(3)
        self.assertEqual((bucket.tokens, bucket.seen_at), (1, 10))

    def test_wait(self):
        bucket = Bucket(4, 2)
        bucket.take(3, 0)
        self.assertEqual(bucket.wait(3, 0), 1.0)


if __name__ == "__main__":
    unittest.main()

import unittest

from codec import decode, encode


class Codec(unittest.TestCase):
    def test_three_bytes_are_four_signs(self):
        self.assertEqual(encode(list(b"Man")), "TWFu")

    def test_one_byte_is_padded_twice(self):
        self.assertEqual(encode(list(b"M")), "TQ==")

    def test_two_bytes_are_padded_once(self):
        self.assertEqual(encode(list(b"Ma")), "TWE=")

    def test_decode(self):
        self.assertEqual(bytes(decode("TWFuTQ==")), b"ManM")
        self.assertEqual(decode("TWE="), list(b"Ma"))

    def test_a_cut_text_is_refused(self):
        with self.assertRaises(ValueError):
            decode("TWF")


if __name__ == "__main__":
    unittest.main()

import unittest

from wrap import wrap


class Wrap(unittest.TestCase):
    def test_words_fill_a_line(self):
        self.assertEqual(wrap("to be or not", 5), ["to be", "or", "not"])

    def test_a_short_text_is_one_line(self):
        self.assertEqual(wrap("to be", 20), ["to be"])

    def test_a_long_word_is_cut(self):
        self.assertEqual(wrap("a abcdefgh b", 4), ["a", "abcd", "efgh", "b"])

    def test_spaces_collapse(self):
        self.assertEqual(wrap("  a \n b ", 9), ["a b"])

    def test_nothing_gives_no_line(self):
        self.assertEqual(wrap(" ", 5), [])

    def test_no_width_is_refused(self):
        with self.assertRaises(ValueError):
            wrap("a", 0)


if __name__ == "__main__":
    unittest.main()

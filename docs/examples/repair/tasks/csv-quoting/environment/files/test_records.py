import unittest

from records import read_records, write_record


class Records(unittest.TestCase):
    def test_plain_fields(self):
        self.assertEqual(write_record(["a", "b"]), "a,b\n")
        self.assertEqual(read_records("a,b\nc,\n"), [["a", "b"], ["c", ""]])

    def test_a_comma_is_quoted(self):
        self.assertEqual(read_records(write_record(["a,b", "c"])), [["a,b", "c"]])

    def test_a_quote_comes_back(self):
        self.assertEqual(read_records(write_record(['say "hi"'])), [['say "hi"']])

    def test_a_line_break_comes_back(self):
        self.assertEqual(read_records(write_record(["two\nlines", "x"])), [["two\nlines", "x"]])

    def test_an_open_quote_is_refused(self):
        with self.assertRaises(ValueError):
            read_records('"a,b\n')


if __name__ == "__main__":
    unittest.main()

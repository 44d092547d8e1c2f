import unittest

from matrix import power, product, transpose


class Matrix(unittest.TestCase):
    def test_product(self):
        self.assertEqual(product([[1, 2], [3, 4]], [[5, 6], [7, 8]]), [[19, 22], [43, 50]])

    def test_product_of_a_row_and_a_column(self):
        self.assertEqual(product([[1, 2, 3]], [[4], [5], [6]]), [[32]])

    def test_shapes_have_to_fit(self):
        with self.assertRaises(ValueError):
            product([[1, 2]], [[1, 2]])

    def test_transpose(self):
        self.assertEqual(transpose([[1, 2, 3], [4, 5, 6]]), [[1, 4], [2, 5], [3, 6]])

    def test_power(self):
        self.assertEqual(power([[1, 1], [1, 0]], 6), [[13, 8], [8, 5]])


if __name__ == "__main__":
    unittest.main()

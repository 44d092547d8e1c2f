"""Matrices as lists of rows."""


def shape(matrix):
    width = len(matrix[0])
    if any(len(row) != width for row in matrix):
        raise ValueError("rows of different lengths")
    return len(matrix), width


def transpose(matrix):
    height, width = shape(matrix)
    return [[matrix[i][j] for i in range(height)] for j in range(width)]


def product(left, right):
    height, inner = shape(left)
    rows, width = shape(right)
    if inner != rows:
        raise ValueError(f"{inner} columns times {rows} rows")
    return [[sum(left[i][k] * right[j][k] for k in range(inner)) for j in range(width)] for i in range(height)]


def power(matrix, exponent):
    height, _ = shape(matrix)
    result = [[int(i == j) for j in range(height)] for i in range(height)]
    for _ in range(exponent):
        result = product(result, matrix)
    return result

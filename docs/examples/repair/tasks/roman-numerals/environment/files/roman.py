"""Roman numerals from 1 to 3999."""

VALUES = [
    ("M", 1000), ("CM", 900), ("D", 500), ("CD", 400), ("C", 100), ("XC", 90),
    ("L", 50), ("X", 10), ("IX", 9), ("V", 5), ("IV", 4), ("I", 1),
]


def to_roman(number):
    if not 1 <= number <= 3999:
        raise ValueError(f"{number} is not in 1..3999")
    text = ""
    for sign, value in VALUES:
        while number >= value:
            text += sign
            number -= value
    return text


def from_roman(text):
    number = 0
    rest = text
    for sign, value in VALUES:
        while rest.startswith(sign):
            number += value
            rest = rest[len(sign):]
    if rest or not 1 <= number <= 3999 or to_roman(number) != text:
        raise ValueError(f"{text!r} is no roman numeral")
    return number

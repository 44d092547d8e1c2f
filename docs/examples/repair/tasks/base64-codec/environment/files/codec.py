"""Base64 of RFC 4648, padded."""

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def encode(values):
    """A list of byte values as text."""
    text = ""
    for at in range(0, len(values), 3):
        chunk = values[at : at + 3]
        bits = 0
        for value in chunk + [0] * (3 - len(chunk)):
            bits = bits << 8 | value
        signs = [ALPHABET[bits >> shift & 63] for shift in (18, 12, 6, 0)]
        text += "".join(signs[: len(chunk)]) + "=" * (3 - len(chunk))
    return text


def decode(text):
    """The byte values of encoded text."""
    if len(text) % 4:
        raise ValueError("the length is no multiple of 4")
    values = []
    for at in range(0, len(text), 4):
        signs = text[at : at + 4].rstrip("=")
        bits = 0
        for sign in signs + "A" * (4 - len(signs)):
            bits = bits << 6 | ALPHABET.index(sign)
        values += [bits >> shift & 255 for shift in (16, 8, 0)][: len(signs) - 1]
    return values

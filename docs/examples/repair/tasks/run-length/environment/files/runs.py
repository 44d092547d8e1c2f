"""Run-length coding of text: `aaab` is `3ab`. Digits are not allowed in the text."""


def encode(text):
    coded = ""
    count = 0
    previous = ""
    for sign in text + "\n":
        if sign.isdigit():
            raise ValueError("digits cannot be coded")
        if sign == previous:
            count += 1
            continue
        if count > 2:
            coded += str(count)
        coded += previous
        previous = sign
        count = 1
    return coded


def decode(coded):
    text = ""
    count = ""
    for sign in coded:
        if sign.isdigit():
            count += sign
        else:
            text += sign * int(count or 0)
            count = ""
    if count:
        raise ValueError("a count without a sign")
    return text

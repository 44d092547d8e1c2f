"""Brackets that have to match."""

PAIRS = {")": "(", "]": "[", "}": "{"}


def balanced(text):
    """Whether every bracket outside quotes is closed by its own kind."""
    open_brackets = []
    quote = None
    for mark in text:
        if quote:
            if mark == quote:
                quote = None
        elif mark in "'\"":
            quote = mark
        elif mark in PAIRS.values():
            open_brackets.append(mark)
        elif mark in PAIRS:
            if not open_brackets or open_brackets.pop() != PAIRS[mark]:
                return False
    return quote is None


def depth(text):
    """Deepest nesting of balanced text without quotes."""
    if not balanced(text):
        raise ValueError("the brackets do not match")
    level = deepest = 0
    for mark in text:
        if mark in PAIRS.values():
            level += 1
            deepest = max(deepest, level)
        elif mark in PAIRS:
            level -= 1
    return deepest

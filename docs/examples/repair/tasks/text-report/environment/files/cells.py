"""One cell of a table."""


def pad(text, width, right):
    space = " " * (width - len(text))
    return text + space if right else space + text


def clip(text, width):
    """At most `width` signs; what was cut ends with a dot."""
    if len(text) <= width:
        return text
    return text[: width - 1] + "."

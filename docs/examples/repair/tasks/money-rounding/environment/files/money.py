"""Amounts in whole cents."""


def parse(text):
    """Cents of an amount such as `12.5` or `-0.995`; half a cent is rounded away from zero."""
    sign = -1 if text.startswith("-") else 1
    whole, _, fraction = text.lstrip("+-").partition(".")
    if not (whole + fraction).isdigit():
        raise ValueError(f"{text!r} is no amount")
    return sign * int(float(f"{whole or 0}.{fraction}") * 100 + 0.5)


def split(cents, people):
    """Shares that add up; the first people get the cents left over."""
    if people < 1:
        raise ValueError("nobody to split with")
    share, rest = divmod(cents, people)
    return [share + 1] * rest + [share] * (people - rest)


def show(cents):
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"

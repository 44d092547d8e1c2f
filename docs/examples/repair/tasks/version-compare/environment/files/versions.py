"""Versions such as 1.10.2 or 2.0-rc1."""


def key(version):
    """Sorts as versions do: by numbers, a pre-release before its release."""
    release, dash, pre = version.partition("-")
    numbers = release.split(".")
    while numbers and numbers[-1] == "0":
        numbers.pop()
    return numbers, not dash, pre


def compare(left, right):
    """-1, 0 or 1."""
    left, right = key(left), key(right)
    return (left > right) - (left < right)


def newest(versions):
    return max(versions, key=key)

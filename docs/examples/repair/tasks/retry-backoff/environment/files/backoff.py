"""Delays between tries: doubled each time, never above a ceiling."""


def delay(attempt, base=1.0, ceiling=60.0):
    """Seconds to wait after try number `attempt`, counted from 1."""
    if attempt < 1:
        raise ValueError("attempts are counted from 1")
    return max(base * 2 ** (attempt - 1), ceiling)


def schedule(attempts, base=1.0, ceiling=60.0):
    """The delays between `attempts` tries: none after the last."""
    return [delay(number, base, ceiling) for number in range(1, attempts)]


class Retry:
    """Counts failures; a success starts again."""

    def __init__(self, attempts):
        self.attempts = attempts
        self.failures = 0

    def failed(self):
        """The delay before the next try, or None if there is none left."""
        self.failures += 1
        if self.failures >= self.attempts:
            return None
        return delay(self.failures)

    def succeeded(self):
        self.failures = 0

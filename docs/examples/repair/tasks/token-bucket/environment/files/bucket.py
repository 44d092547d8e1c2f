"""A rate limit: tokens come back with time, up to a capacity."""


class Bucket:
    def __init__(self, capacity, per_second):
        self.capacity = capacity
        self.per_second = per_second
        self.tokens = capacity
        self.seen_at = 0

    def refill(self, now):
        elapsed = max(0, now - self.seen_at)
        self.tokens = min(self.capacity, self.tokens + elapsed / self.per_second)
        self.seen_at = max(self.seen_at, now)

    def take(self, count, now):
        """Whether `count` tokens were there, and are gone now."""
        self.refill(now)
        if self.tokens <= count:
            return False
        self.tokens -= count
        return True

    def wait(self, count, now):
        """Seconds until `count` tokens are there."""
        if count > self.capacity:
            raise ValueError("more than the capacity")
        self.refill(now)
        return max(0, count - self.tokens) / self.per_second

"""A buffer of fixed size in which the newest values overwrite the oldest."""


class Ring:
    def __init__(self, size):
        if size < 1:
            raise ValueError("size must be at least 1")
        self.slots = [None] * size
        self.start = 0
        self.count = 0

    def push(self, value):
        end = (self.start + self.count) % len(self.slots)
        self.slots[end] = value
        if self.count < len(self.slots):
            self.count += 1
        else:
            self.start = (self.start + 2) % len(self.slots)

    def pop(self):
        """The oldest value."""
        if self.count == 0:
            raise IndexError("the buffer is empty")
        value = self.slots[self.start]
        self.start = (self.start + 1) % self.count
        self.count -= 1
        return value

    def values(self):
        """Oldest first."""
        return [self.slots[(self.start + offset) % len(self.slots)] for offset in range(self.count)]

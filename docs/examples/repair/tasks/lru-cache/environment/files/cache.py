"""A bounded cache that forgets what was not used for the longest time."""

from collections import OrderedDict


class Cache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self.entries = OrderedDict()

    def get(self, key, default=None):
        if key not in self.entries:
            return default
        self.entries.move_to_end(key)
        return self.entries[key]

    def put(self, key, value):
        """Stores, and returns the key that had to go, or None."""
        self.entries[key] = value
        self.entries.move_to_end(key)
        if len(self.entries) > self.capacity:
            evicted, _ = self.entries.popitem(last=True)
            return evicted
        return None

    def keys(self):
        """Oldest use first."""
        return list(self.entries)

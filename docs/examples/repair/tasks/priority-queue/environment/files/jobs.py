"""Jobs by priority; equal ones in the order they came."""

from heap import push, pop


class Jobs:
    def __init__(self):
        self.heap = []
        self.added = 0

    def add(self, name, priority=50):
        """A larger priority goes first."""
        if not 0 <= priority <= 100:
            raise ValueError(f"priority {priority} is not in 0..100")
        push(self.heap, (priority, self.added, name))
        self.added += 1

    def next(self):
        """The name of the first job, or None."""
        if not self.heap:
            return None
        return pop(self.heap)[-1]

    def drain(self):
        names = []
        while self.heap:
            names.append(self.next())
        return names

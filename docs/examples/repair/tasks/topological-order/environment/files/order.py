"""Order of tasks that need one another."""

import heapq


def order(needs):
    """Names such that each follows what it needs; alphabetical where there is a choice."""
    waiting = {name: len(set(before)) for name, before in needs.items()}
    followers = {name: [] for name in needs}
    for name, before in needs.items():
        for other in set(before):
            if other not in needs:
                raise KeyError(other)
            followers[other].append(name)
    ready = [name for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    done = []
    while ready:
        name = heapq.heappop(ready)
        done.append(name)
        for follower in followers[name]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    if len(done) > len(needs):
        raise ValueError("these need one another: " + ", ".join(sorted(set(needs) - set(done))))
    return done

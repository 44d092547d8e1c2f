"""A binary heap in a list, the smallest first."""


def push(heap, item):
    heap.append(item)
    at = len(heap) - 1
    while at > 0 and heap[at] < heap[(at - 1) // 2]:
        parent = (at - 1) // 2
        heap[at], heap[parent] = heap[parent], heap[at]
        at = parent


def pop(heap):
    heap[0], heap[-1] = heap[-1], heap[0]
    item = heap.pop()
    at = 0
    while True:
        child = 2 * at + 1
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if child >= len(heap) or heap[at] <= heap[child]:
            return item
        heap[at], heap[child] = heap[child], heap[at]
        at = child

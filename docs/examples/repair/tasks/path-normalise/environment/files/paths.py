"""Slash-separated paths, worked out on the text alone."""


def normalise(path):
    """Removes empty parts, `.` and `..`. The parent of `/` is `/`."""
    rooted = path.startswith("/")
    parts = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts and parts[-1] != "..":
            parts.pop()
        elif rooted:
            parts.append(part)
    text = "/".join(parts)
    if rooted:
        return "/" + text
    return text or "."


def inside(path, root):
    """Whether `path` is `root` or below it."""
    path, root = normalise(path), normalise(root)
    return root == "/" or path == root or path.startswith(root + "/")

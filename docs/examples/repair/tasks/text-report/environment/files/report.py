"""A table of text with aligned columns."""

from cells import clip, pad


def render(rows, widths=None, gap=2):
    """Lines of columns; numbers to the right, text to the left. `widths` clips columns."""
    if not rows:
        return []
    count = len(rows[0])
    texts = [[str(cell) for cell in row] for row in rows]
    wide = [min(len(row[at]) for row in texts) for at in range(count)]
    if widths:
        wide = [min(wide[at], widths[at]) for at in range(count)]
    lines = []
    for row, text in zip(rows, texts):
        cells = [pad(clip(text[at], wide[at]), wide[at], isinstance(row[at], int)) for at in range(count)]
        lines.append((" " * gap).join(cells).rstrip())
    return lines

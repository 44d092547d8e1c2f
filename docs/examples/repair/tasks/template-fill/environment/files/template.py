"""Texts with {name} fields; `{{` and `}}` are braces."""


def fill(template, values):
    text = ""
    at = 0
    while at < len(template):
        mark = template[at]
        if mark == "{":
            end = template.find("}", at)
            if end < 0:
                raise ValueError(f"the field at {at} is not closed")
            name, _, default = template[at + 1 : end].partition("|")
            if name not in values and not _:
                raise KeyError(name)
            text += str(values.get(name, default))
            at = end + 2
        elif mark == "}":
            raise ValueError(f"a lone brace at {at}")
        else:
            text += mark
            at += 1
    return text

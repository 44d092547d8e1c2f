"""Sections of `key = value` lines."""


def read(text):
    """A dictionary of sections. Keys before the first section are in section ``""``."""
    sections = {"": {}}
    current = sections[""]
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            if not line.endswith("]"):
                raise ValueError(f"line {number}: the section is not closed")
            current = sections.setdefault(line[1:].strip(), {})
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"line {number}: expected key = value")
        current[key.strip()] = value.strip()
    return sections

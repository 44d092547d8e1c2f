"""Comma-separated records with quotes, one line of text or several."""


def write_record(fields):
    return ",".join(quote(field) for field in fields) + "\n"


def quote(field):
    if any(mark in field for mark in ',"'):
        return '"' + field.replace('"', '""') + '"'
    return field


def read_records(text):
    records, fields, field = [], [], ""
    quoted = False
    at = 0
    while at < len(text):
        mark = text[at]
        if quoted:
            if mark != '"':
                field += mark
            elif text[at + 1 : at + 2] == '"':
                at += 1
            else:
                quoted = False
        elif mark == '"':
            quoted = True
        elif mark == ",":
            fields.append(field)
            field = ""
        elif mark == "\n":
            records.append(fields + [field])
            fields, field = [], ""
        else:
            field += mark
        at += 1
    if quoted:
        raise ValueError("a quoted field is not closed")
    if field or fields:
        records.append(fields + [field])
    return records

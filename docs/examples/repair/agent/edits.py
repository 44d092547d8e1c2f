"""Small changes to a program that might mend it: for Python from its syntax tree, for shell from its lines."""

import ast
import re
from dataclasses import dataclass

MAX_EDITS = 4000
SIMPLE = (ast.Assign, ast.AugAssign, ast.Expr)

COMPARISONS = {
    "<": ["<=", ">", ">="],
    "<=": ["<", ">=", ">"],
    ">": [">=", "<", "<="],
    ">=": [">", "<=", "<"],
    "==": ["!=", "<=", ">="],
    "!=": ["==", "<", ">"],
    "in": ["not in"],
    "not in": ["in"],
    "is": ["is not"],
    "is not": ["is"],
}
OPERATORS = {
    "+": ["-", "*"],
    "-": ["+"],
    "*": ["/", "+", "//"],
    "/": ["*", "//"],
    "//": ["/", "%"],
    "%": ["//"],
    "<<": [">>"],
    ">>": ["<<"],
    "|": ["&"],
    "&": ["|"],
    "**": ["*"],
}
# A function or method, and what is often meant instead.
TWINS = {
    "min": ["max"],
    "max": ["min"],
    "any": ["all"],
    "all": ["any"],
    "strip": ["lstrip", "rstrip"],
    "lstrip": ["rstrip", "strip"],
    "rstrip": ["lstrip", "strip"],
    "startswith": ["endswith"],
    "endswith": ["startswith"],
    "find": ["rfind"],
    "rfind": ["find"],
    "partition": ["rpartition"],
    "rpartition": ["partition"],
    "split": ["rsplit"],
    "ljust": ["rjust"],
    "rjust": ["ljust"],
    "append": ["extend"],
    "add": ["discard"],
    "sum": ["max", "len"],
    "upper": ["lower"],
    "lower": ["upper"],
}


@dataclass(frozen=True)
class Edit:
    """Replaces bytes `start` to `end` of a file. `lines` are where it counts, `weight` how likely its kind is."""

    file: str
    start: int
    end: int
    text: str
    kind: str
    weight: float
    lines: tuple

    def apply(self, source):
        return source[: self.start] + self.text.encode() + source[self.end :]

    def show(self, source):
        before = source[self.start : self.end].decode(errors="replace")
        return f"{self.file}:{self.lines[-1]} {self.kind}: {before!r} to {self.text!r}"


def edits_of(file, source):
    """Every edit of one file, none twice."""
    made = python_edits(file, source) if file.endswith(".py") else shell_edits(file, source)
    unique = {}
    for edit in made:
        changed = edit.apply(source)
        if changed != source:
            unique.setdefault(changed, edit)
        if len(unique) >= MAX_EDITS:
            break
    return list(unique.values())


def python_edits(file, source):
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    walker = PythonEdits(file, source)
    walker.visit(tree)
    return walker.edits


class PythonEdits(ast.NodeVisitor):
    """Collects edits node by node. Columns of the tree count bytes, so the source is bytes."""

    def __init__(self, file, source):
        self.file = file
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.edits = []
        self.statements = [0]
        self.names = [[]]
        self.numbers = [0, 1]

    def span(self, node):
        begin = self.starts[node.lineno - 1] + node.col_offset
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node):
        begin, end = self.span(node)
        return self.source[begin:end].decode()

    def replace(self, node, text, kind, weight):
        begin, end = self.span(node)
        self.put(begin, end, text, kind, weight, node.lineno)

    def put(self, begin, end, text, kind, weight, line):
        self.edits.append(Edit(self.file, begin, end, text, kind, weight, (self.statements[-1], line)))

    def swap(self, left, right, kind, weight):
        """Exchanges two nodes."""
        (begin, middle), (again, end) = self.span(left), self.span(right)
        between = self.source[middle:again].decode()
        self.put(begin, end, self.text(right) + between + self.text(left), kind, weight, left.lineno)

    def between(self, left, right, table, kind, weight):
        """Replaces the operator that stands between two nodes."""
        begin, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[begin:end].decode()
        operator = gap.strip(" ()\n")
        at = gap.find(operator)
        for other in table.get(operator, []):
            self.put(begin + at, begin + at + len(operator), other, kind, weight, left.end_lineno)

    def visit(self, node):
        if isinstance(node, ast.stmt):
            self.statements.append(node.lineno)
            super().visit(node)
            self.statements.pop()
        else:
            super().visit(node)

    def visit_Module(self, node):
        numbers = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is int]
        self.numbers = sorted(set(numbers) | {0, 1})
        self.generic_visit(node)

    def visit_FunctionDef(self, node):
        arguments = [argument.arg for argument in node.args.args if argument.arg != "self"]
        assigned = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.names.append(sorted(set(arguments + assigned)))
        self.block(node.body)
        self.generic_visit(node)
        self.names.pop()

    def block(self, body):
        """Swaps neighbours and leaves statements out."""
        for first, second in zip(body, body[1:]):
            if isinstance(first, SIMPLE) and isinstance(second, SIMPLE) and not is_docstring(first):
                self.swap(first, second, "statement order", 0.5)
        for statement in body:
            if isinstance(statement, (ast.AugAssign, ast.Expr, ast.Continue)) and not is_docstring(statement):
                self.replace(statement, "pass", "statement left out", 0.5)
            for inner in ("body", "orelse"):
                if not isinstance(statement, ast.FunctionDef):
                    self.block(getattr(statement, inner, []))

    def visit_Compare(self, node):
        operands = [node.left, *node.comparators]
        for left, right in zip(operands, operands[1:]):
            self.between(left, right, COMPARISONS, "comparison", 5)
            self.offsets(right)
        if len(operands) == 2:
            self.swap(*operands, "operands", 1)
        self.generic_visit(node)

    def visit_BinOp(self, node):
        self.between(node.left, node.right, OPERATORS, "operator", 3)
        if isinstance(node.op, (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)):
            self.swap(node.left, node.right, "operands", 1)
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        begin, end = self.span(node.target)[1], self.span(node.value)[0]
        operator = self.source[begin:end].decode().strip()
        for other in {"+=": ["-=", "="], "-=": ["+="], "*=": ["/=", "+="]}.get(operator, []):
            self.put(begin, end, f" {other} ", "assignment", 2, node.lineno)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        for left, right in zip(node.values, node.values[1:]):
            self.between(left, right, {"and": ["or"], "or": ["and"]}, "and/or", 3)
            begin = self.span(left)[1]
            self.put(begin, self.span(right)[1], "", "condition left out", 1, right.lineno)
            self.put(self.span(left)[0], self.span(right)[0], "", "condition left out", 1, left.lineno)
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, (ast.Not, ast.USub)):
            self.replace(node, self.text(node.operand), "sign or not left out", 3)
        self.generic_visit(node)

    def visit_If(self, node):
        self.replace(node.test, f"not ({self.text(node.test)})", "negated", 3)
        self.generic_visit(node)

    visit_While = visit_If
    visit_IfExp = visit_If

    def visit_Constant(self, node):
        value = node.value
        if isinstance(value, bool):
            self.replace(node, str(not value), "constant", 4)
        elif isinstance(value, int):
            near = {value + 1: 4, value - 1: 4, value * 2: 1}
            for other in self.numbers:
                near.setdefault(other, 1.5)
            for other, weight in near.items():
                self.replace(node, str(other), "constant", weight)

    def visit_Call(self, node):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        for other in TWINS.get(name, []):
            end = self.span(node.func)[1]
            self.put(end - len(name), end, other, "function", 4, node.lineno)
        for left, right in zip(node.args, node.args[1:]):
            self.swap(left, right, "arguments", 2)
        if name == "range":
            for argument in node.args:
                self.offsets(argument)
        self.generic_visit(node)

    def visit_Subscript(self, node):
        inner = node.value
        if isinstance(inner, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            self.swap(inner.slice, node.slice, "indexes", 3)
        if isinstance(node.slice, ast.Slice):
            self.slice_edits(node)
        elif not isinstance(node.slice, (ast.Constant, ast.UnaryOp)):
            self.offsets(node.slice)
        self.generic_visit(node)

    def slice_edits(self, node):
        value_end, end = self.span(node.value)[1], self.span(node)[1]
        lower = self.text(node.slice.lower) if node.slice.lower else ""
        upper = self.text(node.slice.upper) if node.slice.upper else ""
        options = [(lower, ""), ("", upper), (lower, f"{upper} + 1"), (lower, f"{upper} - 1")]
        if not upper:
            options = [(lower, "-1"), ("", ""), (f"{lower or 0} + 1", "")]
        for low, high in options:
            self.put(value_end, end, f"[{low}:{high}]", "slice", 3, node.lineno)

    def offsets(self, node):
        if isinstance(node, (ast.Name, ast.Call, ast.Attribute, ast.BinOp)):
            for change in ("+ 1", "- 1"):
                self.replace(node, f"{self.text(node)} {change}", "off by one", 2)

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load) and node.id in self.names[-1]:
            for other in self.names[-1]:
                if other != node.id:
                    self.replace(node, other, "name", 0.4)

    def visit_Tuple(self, node):
        for element in node.elts:
            if isinstance(element, ast.Name) and isinstance(element.ctx, ast.Load):
                self.replace(element, f"-{element.id}", "sign", 1)
        self.generic_visit(node)


def is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


# Pattern, what it may become (a template of the match), kind, weight.
SHELL_RULES = [
    (r"(?<=\s)-lt(?=\s)", ["-le", "-gt", "-ge"], "comparison", 5),
    (r"(?<=\s)-le(?=\s)", ["-lt", "-ge", "-gt"], "comparison", 5),
    (r"(?<=\s)-gt(?=\s)", ["-ge", "-lt", "-le"], "comparison", 5),
    (r"(?<=\s)-ge(?=\s)", ["-gt", "-le", "-lt"], "comparison", 5),
    (r"(?<=\s)-eq(?=\s)", ["-ne"], "comparison", 4),
    (r"(?<=\s)-ne(?=\s)", ["-eq"], "comparison", 4),
    (r"(?<=\s)=(?=\s)", ["!="], "comparison", 3),
    (r"(?<=\s)!=(?=\s)", ["="], "comparison", 3),
    (r"(?<=\[ )-([efdszn])(?=\s)", ["-e", "-f", "-d", "-s", "-z", "-n", r"! -\1"], "file test", 3),
    (r"(?<=\[ )! ", [""], "not left out", 3),
    (r"\b(?:if|while) \[ (?!!)", [r"\g<0>! "], "negated", 2),
    (r"\bhead\b", ["tail"], "command", 3),
    (r"\btail\b", ["head"], "command", 3),
    (r"\bsort\b", ["sort -r", "sort -n"], "command", 1),
    (r"\bbreak\b", ["continue"], "command", 1),
    (r"&&", ["||"], "and/or", 2),
    (r"\|\|", ["&&"], "and/or", 2),
    (r"(?<![\"\w])\$(\w+|[@*])(?!\")", [r'"$\1"'], "quotes", 3),
    (r'"\$\*"', ['"$@"'], "quotes", 3),
    (r"(?<= )>(?= )", [">>"], "redirection", 1),
    (r"(?<= )>>(?= )", [">"], "redirection", 1),
    (r"(?<=\w) \+ (?=\w)", [" - "], "operator", 2),
    (r"(?<=\w) - (?=\w)", [" + "], "operator", 2),
    (r"(?<=\w) \* (?=\w)", [" / "], "operator", 1),
    (r"(?<=\w) / (?=\w)", [" * "], "operator", 1),
]


def shell_edits(file, source):
    edits = []
    text = source.decode()
    at = 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        begin = len(text[:at].encode())
        at += len(line)
        if line.lstrip().startswith("#"):
            continue

        def put(start, end, other, kind, weight):
            first, last = (begin + len(line[:place].encode()) for place in (start, end))
            edits.append(Edit(file, first, last, other, kind, weight, (number,)))

        for pattern, others, kind, weight in SHELL_RULES:
            for match in re.finditer(pattern, line):
                for other in others:
                    put(*match.span(), match.expand(other) if "\\" in other else other, kind, weight)
        for match in re.finditer(r"(?<![\w$#-])\d+(?![\w])", line):
            value = int(match.group())
            for other in {value + 1, max(0, value - 1)}:
                put(*match.span(), str(other), "constant", 2)
    return edits

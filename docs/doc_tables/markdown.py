"""Tables as text, and docstrings as cells."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from types import ModuleType


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def first_line(docstring: str | None) -> str:
    """The first paragraph of a docstring in one line."""
    return " ".join((docstring or "").split("\n\n")[0].split())


def commented_fields(module: ModuleType, name: str) -> list[tuple[str, str, str]]:
    """(name, annotation or value, what the string below it says) of each field of a class, in order."""
    found = next(node for node in class_nodes(module) if node.name == name)
    return [(target, text, note) for target, text, note in _fields(found.body) if not target.startswith("_")]


def class_nodes(module: ModuleType) -> list[ast.ClassDef]:
    """The classes of a module, parsed."""
    return [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)]


def _fields(body: Sequence[ast.stmt]) -> list[tuple[str, str, str]]:
    fields = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        note = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            note = " ".join(str(after.value.value).split())
        match node:
            case ast.AnnAssign(target=ast.Name(id=target), annotation=annotation):
                fields.append((target, ast.unparse(annotation), note))
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                fields.append((target, ast.unparse(value), note))
    return fields


def code(text: str) -> str:
    """The text as code; nothing stays nothing."""
    return f"`{text}`" if text else ""


def without_none(annotation: str) -> str:
    """An annotation as readers need it: without the None that every option may be."""
    return re.sub(r" \| None$", "", annotation)

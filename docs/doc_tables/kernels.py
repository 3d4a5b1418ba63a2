"""The table of operators, read from the source of ops.py: to import it would load torch and numba."""

from __future__ import annotations

import ast
from pathlib import Path

from doc_tables.markdown import code, first_line, table

OPS = Path(__file__).parents[2] / "kernels" / "pagemill_kernels" / "ops.py"


def operators() -> str:
    """One row for each public function of ops.py."""
    rows = [
        (code(f"{node.name}({', '.join(_parameters(node.args))})"), first_line(ast.get_docstring(node)))
        for node in ast.parse(OPS.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    return table(("operator", "meaning"), rows)


def _parameters(arguments: ast.arguments) -> list[str]:
    named = [argument.arg for argument in arguments.args]
    keywords = [argument.arg for argument in arguments.kwonlyargs]
    return [*named, "*", *keywords] if keywords else named

"""jinja2's immutable sandbox, made for chat templates and bound to a budget of time and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from pagemill_common.tokenisation.budget import (
    bounded,
    check_arguments,
    check_nest,
    check_operands,
    check_result,
    guarded_filter,
    tick,
)

__all__ = ["ChatEnvironment"]

# Methods of texts and numbers whose results the budget does not foresee, and that chat templates do not use.
_REFUSED_ATTRIBUTES = frozenset({"encode", "from_bytes", "maketrans", "to_bytes", "translate"})


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; rendering passes it through."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _PlainNamespace(Namespace):
    """A namespace without names that begin with an underscore: Python would take those for its own protocols."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` is a name that templates may use
        _check_names(dict(*args[1:], **kwargs))
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_names((name,))
        super().__setitem__(name, value)


def _check_names(names: Sequence[str] | dict[str, Any]) -> None:
    for name in names:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace may not hold {name!r}")


class _Instrument(NodeTransformer):
    """Adds a time check to every loop, which may write nothing, and a size check to every `~`, which is no operator
    to jinja2.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - named by jinja2
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick_loop", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - named by jinja2
        self.generic_visit(node)
        return _call("concatenate", [nodes.List(node.nodes, lineno=node.lineno)], node.lineno)


def _call(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None, lineno=line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """What Hugging Face's chat templates are written for, less what could run away."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], finalize=bounded)
        self.globals.pop("lipsum", None)
        self.globals["namespace"] = _PlainNamespace
        self.filters.update({name: guarded_filter(name, function) for name, function in self.filters.items()})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Instrument().visit(super()._parse(source, name, filename))
        return tree

    def tick_loop(self) -> None:
        """One turn of a loop."""
        tick()

    def concatenate(self, values: list[Any]) -> str:
        """The `~` operator."""
        result = ""
        for value in values:
            check_nest(value)
            text = str(value)
            check_operands("+", result, text)
            result += text
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """No internals, and nothing whose result cannot be foreseen."""
        return attr not in _REFUSED_ATTRIBUTES and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call from a template, within the budget."""
        method = getattr(function, "__wrapped__", function)  # jinja2 wraps the format methods of texts
        receiver = getattr(method, "__self__", None)
        check_arguments(getattr(method, "__name__", ""), receiver, [*args, *kwargs.values()])
        return check_result(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator, after a look at how large its result would be."""
        check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

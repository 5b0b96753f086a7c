"""A plugin of mypy that notes which attributes of which classes are read, and where.

mypy knows the type of every expression, so an attribute of the same name on another class is not mistaken for a key.
``TOWPATH_READS`` names the file for the notes, ``TOWPATH_READS_OF`` the package of the classes that count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from mypy.nodes import Context, Expression, MemberExpr, NameExpr
from mypy.plugin import AttributeContext, MethodContext, Plugin
from mypy.types import Type

OF = os.environ["TOWPATH_READS_OF"] + "."
NOTES = Path(os.environ["TOWPATH_READS"])


class Reads(Plugin):
    """Writes a line for each read: class and attribute, file, line, and the last two names of the expression."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        if not fullname.startswith(OF):
            return None

        def note(context: AttributeContext) -> Type:
            if not context.is_lvalue:
                _note(fullname, context.api.path, context.context)
            return context.default_attr_type

        return note

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        if not fullname.startswith(OF):
            return None

        def note(context: MethodContext) -> Type:
            _note(fullname, context.api.path, context.context)
            return context.default_return_type

        return note


def _note(fullname: str, path: str, context: Context) -> None:
    owner = context.expr if isinstance(context, MemberExpr) else None
    through = ".".join(_names(owner)[-2:]) or "-"
    with NOTES.open("a", encoding="utf-8") as notes:
        notes.write(f"{fullname}\t{path}\t{context.line}\t{through}\n")


def _names(expression: Expression | None) -> list[str]:
    """``[a, b, c]`` of ``a.b.c``; the names after the last call or index of other expressions."""
    if isinstance(expression, MemberExpr):
        return [*_names(expression.expr), expression.name]
    return [expression.name] if isinstance(expression, NameExpr) else []


def plugin(version: str) -> type[Plugin]:
    """mypy's entry point."""
    return Reads

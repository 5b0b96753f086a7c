"""Descriptions of the configuration's keys: the docstrings below them, read from the source of the models.

pydantic can attach them to the models while these are defined (``use_attribute_docstrings``). It parses the source of
each class for that, which takes longer than all else that loading a configuration does; only the reference needs them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from functools import cache

from pydantic import BaseModel


def description_of(model: type[BaseModel], name: str) -> str | None:
    """The docstring of a key of a model, which may be defined in a base class. None if it has none."""
    for section in model.__mro__:
        if (
            section is not BaseModel
            and issubclass(section, BaseModel)
            and name in (docstrings := _of_module(section).get(section.__name__, {}))
        ):
            return docstrings[name]
    return None


def _of_module(model: type[BaseModel]) -> Mapping[str, Mapping[str, str]]:
    return _docstrings(inspect.getfile(model))


@cache
def _docstrings(file: str) -> Mapping[str, Mapping[str, str]]:
    """The docstrings of the attributes of each class of a file."""
    with open(file, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    docstrings: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for at, below in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(at, ast.AnnAssign)
                    and isinstance(at.target, ast.Name)
                    and isinstance(below, ast.Expr)
                    and isinstance(below.value, ast.Constant)
                    and isinstance(below.value.value, str)
                ):
                    docstrings.setdefault(node.name, {})[at.target.id] = inspect.cleandoc(below.value.value)
    return docstrings

"""Applies the diffs of partial updates, in Python over single values, because they are rare and small.

A value is what ``expand_partial`` makes: 0xFF, the size of the old document (4 bytes), that document, then the diffs. A
diff is an operation, the size and text of its path, and, unless it removes something, the size and binary form of the
new value. A path names members and array cells and has no wildcards. Sources: MySQL's ``sql-common/json_diff.h`` and
``json_path.h``, https://dev.mysql.com/doc/refman/9.4/en/json.html#json-path-syntax
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa

from cdc.decode.binary_json.scalar_kernels import MAX_DEPTH
from cdc.decode.conversions.base import BadValueError
from cdc.decode.kernels.constants import JSON_DIFFS

ToTexts = Callable[[pa.Array], pa.Array]

REPLACE, INSERT, REMOVE = 0, 1, 2
"""The operations of a diff."""


@dataclass(frozen=True)
class Cell:
    """An array cell, counted from the first or, with ``from_end``, backwards from the last; both count from 0."""

    index: int
    from_end: bool = False


Leg = str | Cell

_LEG = re.compile(
    r"""\s*(?:
        \.\s*(?P<quoted>"(?:[^"\\]|\\.)*")
      | \.\s*(?P<name>[^.\[\s"*]+)
      | \[\s*(?P<index>\d{1,10})\s*\]
      | \[\s*last\s*(?:-\s*(?P<before>\d{1,10})\s*)?\]
    )""",
    re.VERBOSE | re.DOTALL,
)


class _Number(str):
    """A number in the text that the server prints."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number)


class _Rejected(Exception):
    """A diff that no server writes for this document."""


def apply_partial(raw: pa.Array, rows: Sequence[int] | Any, to_texts: ToTexts) -> pa.Array:
    """The texts of documents with their diffs applied. ``rows`` are their rows in the column, for messages;
    ``to_texts`` converts whole documents to text. Raises BadValueError."""
    befores: list[bytes] = []
    diffs: list[list[tuple[int, list[Leg]]]] = []
    values: list[bytes] = []
    value_rows: list[int] = []
    for row, cell in zip(rows, raw.to_pylist(), strict=True):
        try:
            before, operations = _split(cell)
            befores.append(before)
            diffs.append([(operation, parse_path(path)) for operation, path, _ in operations])
        except ValueError as error:
            raise BadValueError(int(row), f"the partial update of a JSON document is damaged: {error}") from None
        for _, _, value in operations:
            if value is not None:
                values.append(value)
                value_rows.append(int(row))
    before_texts = _texts(befores, rows, to_texts)
    value_texts = iter(_texts(values, value_rows, to_texts))
    results = []
    for row, text, changes in zip(rows, before_texts, diffs, strict=True):
        document = _DECODER.decode(text)
        try:
            for operation, legs in changes:
                value = None if operation == REMOVE else _DECODER.decode(next(value_texts))
                _apply(document, operation, legs, value)
        except _Rejected as error:
            raise BadValueError(int(row), f"the partial update does not fit its JSON document: {error}") from None
        if not _depth_ok(document):
            raise BadValueError(int(row), f"the JSON document is nested more than {MAX_DEPTH} deep after its update")
        results.append("".join(_print(document)))
    return pa.array(results, pa.string())


def _texts(values: list[bytes], rows: Sequence[int], to_texts: ToTexts) -> list[str]:
    try:
        texts: list[str] = to_texts(pa.array(values, pa.binary())).to_pylist()
        return texts
    except BadValueError as error:
        raise BadValueError(int(rows[error.row]), error.why) from None


def _split(raw: bytes) -> tuple[bytes, list[tuple[int, bytes, bytes | None]]]:
    """The old document and its diffs: operation, path, new value. Raises ValueError."""
    if len(raw) < 5:
        raise ValueError("it is cut")
    at = 5 + int.from_bytes(raw[1:5], "little")
    if at > len(raw):
        raise ValueError("it is cut")
    before = raw[5:at]
    if before[:1] == bytes([JSON_DIFFS]):
        raise ValueError("the old document is invalid")
    diffs: list[tuple[int, bytes, bytes | None]] = []
    while at < len(raw):
        operation = raw[at]
        if operation > REMOVE:
            raise ValueError(f"unknown operation {operation}")
        path, at = _text(raw, at + 1)
        value: bytes | None = None
        if operation != REMOVE:
            value, at = _text(raw, at)
            if not value or value[0] == JSON_DIFFS:
                raise ValueError("a new value is invalid")
        diffs.append((operation, path, value))
    return before, diffs


def _text(raw: bytes, at: int) -> tuple[bytes, int]:
    """The bytes behind a packed length, and the offset behind them."""
    if at >= len(raw):
        raise ValueError("it is cut")
    size = raw[at]
    at += 1
    if size > 250:
        width = {252: 2, 253: 3, 254: 8}.get(size, 0)
        if width == 0 or at + width > len(raw):
            raise ValueError("a length is impossible")
        size = int.from_bytes(raw[at : at + width], "little")
        at += width
    if at + size > len(raw):
        raise ValueError("it is cut")
    return raw[at : at + size], at + size


def _apply(document: Any, operation: int, legs: list[Leg], value: Any) -> None:
    """Applies one diff in place. Raises _Rejected."""
    if not legs:
        raise _Rejected("it changes the whole document")
    parent = document
    for leg in legs[:-1]:
        parent = _step(parent, leg)
    last = legs[-1]
    if operation == INSERT:
        _insert(parent, last, value)
        return
    _step(parent, last)  # raises if it does not exist
    if isinstance(parent, dict):
        if operation == REMOVE:
            del parent[last]
        else:
            parent[last] = value
    elif isinstance(parent, list) and not isinstance(last, str):
        at = array_index(last, len(parent))
        if operation == REMOVE:
            del parent[at]
        else:
            parent[at] = value
    else:
        raise _Rejected("its path ends in a value that has no parts")


def _step(node: Any, leg: Leg) -> Any:
    if isinstance(leg, str):
        if not isinstance(node, dict) or leg not in node:
            raise _Rejected(f"no key {leg!r}")
        return node[leg]
    if not isinstance(node, list):
        raise _Rejected("its path expects an array where the document has none")
    at = array_index(leg, len(node))
    if not 0 <= at < len(node):
        raise _Rejected("its path leads behind the end of an array")
    return node[at]


def _insert(parent: Any, last: Leg, value: Any) -> None:
    if isinstance(last, str):
        if not isinstance(parent, dict) or last in parent:
            raise _Rejected(f"the key {last!r} exists already, or its parent is no object")
        parent[last] = value
        members = sorted(parent.items(), key=_server_order)
        parent.clear()
        parent.update(members)
    elif isinstance(parent, list):
        parent.insert(min(max(0, array_index(last, len(parent))), len(parent)), value)
    else:
        raise _Rejected("its path expects an array where the document has none")


def _server_order(member: tuple[str, Any]) -> tuple[int, bytes]:
    """The server sorts an object's keys by their length, then by their bytes."""
    key = member[0].encode()
    return len(key), key


def _print(node: Any) -> Iterable[str]:
    """Yields a document's text in pieces."""
    if isinstance(node, _Number):
        yield node
    elif isinstance(node, str):
        yield encode_basestring(node)
    elif isinstance(node, dict):
        comma = "{"
        for key, value in node.items():
            yield f"{comma}{encode_basestring(key)}: "
            yield from _print(value)
            comma = ", "
        yield "}" if node else "{}"
    elif isinstance(node, list):
        comma = "["
        for value in node:
            yield comma
            yield from _print(value)
            comma = ", "
        yield "]" if node else "[]"
    else:
        yield {None: "null", True: "true", False: "false"}[node]


def _depth_ok(node: Any) -> bool:
    """Whether arrays and objects are nested no deeper than the server allows."""
    level = [node]
    for _ in range(MAX_DEPTH):
        inside: list[Any] = []
        for node_inside in level:
            if isinstance(node_inside, dict):
                inside += node_inside.values()
            elif isinstance(node_inside, list):
                inside += node_inside
        level = inside
        if not level:
            return True
    return not any(isinstance(node_inside, dict | list) for node_inside in level)


# ---------------------------------------------------------------- paths


def parse_path(raw: bytes) -> list[Leg]:
    """The legs of a path. Raises ValueError."""
    path = raw.decode()
    if not path.startswith("$"):
        raise ValueError(f"{path[:80]!r} is not a path")
    legs: list[Leg] = []
    at = 1
    while at < len(path):
        match = _LEG.match(path, at)
        if match is None:
            raise ValueError(f"{path[:80]!r} is not a path that a diff may have")
        if match["quoted"] is not None:
            name = json.loads(match["quoted"], strict=False)
            name.encode()  # raises for half a surrogate pair
            legs.append(name)
        elif match["name"] is not None:
            legs.append(match["name"])
        elif match["index"] is not None:
            legs.append(Cell(int(match["index"])))
        else:
            legs.append(Cell(int(match["before"] or 0), from_end=True))
        at = match.end()
    return legs


def array_index(cell: Cell, size: int) -> int:
    """The index of a cell in an array of ``size`` elements, which may lie outside the array."""
    return size - 1 - cell.index if cell.from_end else cell.index

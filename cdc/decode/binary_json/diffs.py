"""Applying the diffs of partial updates: Python over single values, since they are rare and small.

A value is what ``expand_partial`` made: 0xFF, the size of the document before (4 bytes), that document, then diffs:
an operation, the path's size and text, and unless it removes something, the new value's size and binary form.
Source: MySQL's ``sql-common/json_diff.h`` and ``json_path.h``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa

from cdc.decode.binary_json.kernels import constants as k
from cdc.decode.binary_json.paths import Leg, array_index, parse_path
from cdc.decode.conversion import BadValueError

ToTexts = Callable[[pa.Array], pa.Array]


class _Number(str):
    """A number as the server printed it."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number)


class _Rejected(Exception):
    """A diff that no server would have written for this document."""


def apply_partial(raw: pa.Array, rows: Sequence[int] | Any, to_texts: ToTexts) -> pa.Array:
    """The texts of documents with their diffs applied. ``rows`` are their rows in the whole column, for messages;
    ``to_texts`` turns whole documents into text. Raises BadValueError."""
    befores: list[bytes] = []
    diffs: list[list[tuple[int, list[Leg]]]] = []
    values: list[bytes] = []
    value_rows: list[int] = []
    for row, one in zip(rows, raw.to_pylist(), strict=True):
        try:
            before, found = _split(one)
            befores.append(before)
            diffs.append([(operation, parse_path(path)) for operation, path, _ in found])
        except ValueError as error:
            raise BadValueError(int(row), f"the partial update of a JSON document is damaged: {error}") from None
        for _, _, value in found:
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
                value = None if operation == k.DIFF_REMOVE else _DECODER.decode(next(value_texts))
                _apply(document, operation, legs, value)
        except _Rejected as error:
            raise BadValueError(int(row), f"the partial update does not fit its JSON document: {error}") from None
        if not _depth_ok(document):
            raise BadValueError(int(row), f"the JSON document is nested more than {k.MAX_DEPTH} deep after its update")
        results.append("".join(_print(document)))
    return pa.array(results, pa.string())


def _texts(values: list[bytes], rows: Sequence[int], to_texts: ToTexts) -> list[str]:
    try:
        texts: list[str] = to_texts(pa.array(values, pa.binary())).to_pylist()
        return texts
    except BadValueError as error:
        raise BadValueError(int(rows[error.row]), error.why) from None


def _split(raw: bytes) -> tuple[bytes, list[tuple[int, bytes, bytes | None]]]:
    """The document before, and its diffs: operation, path, new value. Raises ValueError."""
    if len(raw) < 5:
        raise ValueError("it is cut")
    at = 5 + int.from_bytes(raw[1:5], "little")
    if at > len(raw):
        raise ValueError("it is cut")
    before = raw[5:at]
    if before[:1] == bytes([k.PARTIAL]):
        raise ValueError("the document before is none")
    diffs: list[tuple[int, bytes, bytes | None]] = []
    while at < len(raw):
        operation = raw[at]
        if operation > k.DIFF_REMOVE:
            raise ValueError(f"there is no operation {operation}")
        path, at = _text(raw, at + 1)
        value: bytes | None = None
        if operation != k.DIFF_REMOVE:
            value, at = _text(raw, at)
            if not value or value[0] == k.PARTIAL:
                raise ValueError("a new value is none")
        diffs.append((operation, path, value))
    return before, diffs


def _text(raw: bytes, at: int) -> tuple[bytes, int]:
    """A packed length and so many bytes; where the next thing begins."""
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
    """Apply one diff in place. Raises _Rejected."""
    if not legs:
        raise _Rejected("it changes the whole document")
    parent = document
    for leg in legs[:-1]:
        parent = _step(parent, leg)
    last = legs[-1]
    if operation == k.DIFF_INSERT:
        _insert(parent, last, value)
        return
    _step(parent, last)  # it must be there
    if isinstance(parent, dict):
        if operation == k.DIFF_REMOVE:
            del parent[last]
        else:
            parent[last] = value
    elif isinstance(parent, list) and not isinstance(last, str):
        at = array_index(last, len(parent))
        if operation == k.DIFF_REMOVE:
            del parent[at]
        else:
            parent[at] = value
    else:
        raise _Rejected("its path ends in a value that has no parts")


def _step(node: Any, leg: Leg) -> Any:
    if isinstance(leg, str):
        if not isinstance(node, dict) or leg not in node:
            raise _Rejected(f"there is no key {leg!r}")
        return node[leg]
    if not isinstance(node, list):
        raise _Rejected("its path looks for an array where there is none")
    at = array_index(leg, len(node))
    if not 0 <= at < len(node):
        raise _Rejected("its path leads beyond an array")
    return node[at]


def _insert(parent: Any, last: Leg, value: Any) -> None:
    if isinstance(last, str):
        if not isinstance(parent, dict) or last in parent:
            raise _Rejected(f"the key {last!r} is there already, or cannot be")
        parent[last] = value
        members = sorted(parent.items(), key=_server_order)
        parent.clear()
        parent.update(members)
    elif isinstance(parent, list):
        parent.insert(min(max(0, array_index(last, len(parent))), len(parent)), value)
    else:
        raise _Rejected("its path looks for an array where there is none")


def _server_order(member: tuple[str, Any]) -> tuple[int, bytes]:
    """The server sorts an object's keys by their length, then by their bytes."""
    key = member[0].encode()
    return len(key), key


def _print(node: Any) -> Iterable[str]:
    """A document's text in pieces."""
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
    for _ in range(k.MAX_DEPTH):
        inside: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inside += one.values()
            elif isinstance(one, list):
                inside += one
        level = inside
        if not level:
            return True
    return not any(isinstance(one, dict | list) for one in level)

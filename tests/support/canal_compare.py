"""The entries of two servers of Canal's protocol, compared field by field."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.canal_client import CanalRefusedError, RawClient
from tests.support.canal_proto import parsed

_VALUES = {1: "TransactionBegin", 2: "RowChange", 3: "TransactionEnd"}


@dataclass(frozen=True)
class Difference:
    """One field that differs."""

    field: str
    """``header.gtid``, ``RowChange.sql``, ``column.value``, …"""
    theirs: Any
    ours: Any
    entry: Any
    column: Any = None
    """Our column, if the field is one's."""


def differences(theirs: Any, ours: Any) -> Iterator[Difference]:
    """Yields every field in which two entries differ, presence in a ``oneof`` included."""
    yield from _fields("entry", theirs, ours, ours, skip=("header", "store_value"))
    yield from _fields("header", theirs.header, ours.header, ours)
    if theirs.entry_type != ours.entry_type:
        return
    name = _VALUES[ours.entry_type]
    left, right = parsed(name, theirs.store_value), parsed(name, ours.store_value)
    yield from _fields(name, left, right, ours, skip=("row_datas",))
    if name != "RowChange":
        return
    if len(left.row_datas) != len(right.row_datas):
        yield Difference("rows", len(left.row_datas), len(right.row_datas), ours)
    for their_row, our_row in zip(left.row_datas, right.row_datas, strict=False):
        yield from _fields("row", their_row, our_row, ours, skip=("before_columns", "after_columns"))
        for side in ("before_columns", "after_columns"):
            columns = getattr(their_row, side), getattr(our_row, side)
            if len(columns[0]) != len(columns[1]):
                yield Difference(f"row.{side}", len(columns[0]), len(columns[1]), ours)
            for a, b in zip(*columns, strict=False):
                yield from _fields("column", a, b, ours, column=b)


def _fields(
    name: str, theirs: Any, ours: Any, entry: Any, *, skip: tuple[str, ...] = (), column: Any = None
) -> Iterator[Difference]:
    for field in ours.DESCRIPTOR.fields:
        if field.name in skip:
            continue
        values = [_value(entry_part, field) for entry_part in (theirs, ours)]
        if values[0] != values[1]:
            yield Difference(f"{name}.{field.name}", values[0], values[1], entry, column)


def _value(message: Any, field: Any) -> Any:
    if field.name == "props":
        return sorted((pair.key, pair.value) for pair in message.props)
    value = getattr(message, field.name)
    return (value, message.HasField(field.name)) if field.containing_oneof else value


def all_entries(client: RawClient, *, quiet_s: float, fetch_size: int = 1000) -> list[list[Any]]:
    """The entries of all batches, each acked, until none has come for ``quiet_s``."""
    batches: list[list[Any]] = []
    last = time.monotonic()
    while time.monotonic() - last < quiet_s:
        batch = client.get(fetch_size)
        if batch.id == -1:
            time.sleep(0.02)
            continue
        client.ack(batch.id)
        batches.append(batch.entries)
        last = time.monotonic()
    return batches


def refusal(client: RawClient) -> tuple[int, str]:
    """The code and text of the error that comes next."""
    try:
        client.expect_ack()
    except CanalRefusedError as error:
        return error.code, error.text
    return 0, ""

"""Helpers of the decoder's tests: golden files, changed events, and the kernels uncompiled."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.binlog.file import BinlogFile
from cdc.binlog.sql.schemas import Schemas
from cdc.decode.reader import DecodeOptions, decode_transactions
from cdc.decode.transactions import TableHistory, Transactions

GOLDEN = Path(__file__).parent.parent / "golden"
KINDS = ("mysql9", "mariadb10", "mariadb11")
TABLE = "shop.every"
TYPED_KINDS = ("mysql9", "mysql56", "mariadb10", "mariadb11")
TYPED_TABLES = [("mysql9", "kinds"), ("mysql56", "kinds")] + [
    (kind, table) for kind in ("mariadb10", "mariadb11") for table in ("kinds", "old")
]
"""The golden tables with every type."""
DECODABLE = [
    "i8",
    "u8",
    "i16",
    "u16",
    "i24",
    "u24",
    "i32",
    "u32",
    "id",
    "u64",
    "f",
    "d",
    "small",
    "large",
    "day",
    "dt",
    "dt3",
    "ts",
    "txt",
    "nm",
    "lat",
    "bin",
    "vb",
    "bl",
    "en",
]


@cache
def golden(kind: str) -> Transactions:
    """The transactions of a golden file."""
    opened = BinlogFile.open(GOLDEN / f"decode-{kind}.binlog")
    assert opened.damage is None
    return Transactions(opened.path, opened.buf, opened.has_checksum, opened.entries).between(0, None)


def decode(transactions: Transactions, **options: Any) -> pa.Table:
    """All rows of the golden table."""
    return pa.Table.from_batches(batches(transactions, **options))


def batches(transactions: Transactions, **options: Any) -> Iterator[pa.RecordBatch]:
    """The golden table's record batches."""
    return _decode(transactions, TABLE, {"columns": DECODABLE, **options})


@cache
def typed(kind: str) -> Transactions:
    """The transactions of a golden file with every type."""
    opened = BinlogFile.open(GOLDEN / f"decode-types-{kind}-v1.binlog")
    assert opened.damage is None
    return Transactions(opened.path, opened.buf, opened.has_checksum, opened.entries).between(0, None)


@cache
def schemas_of(kind: str) -> Schemas:
    """The tables of that file in ``information_schema``."""
    return Schemas.load(GOLDEN / f"decode-types-{kind}-v1.schemas.json")


@cache
def shown_values(kind: str) -> Any:
    """SELECT's answers for these tables after each step, in the form of JSON lines."""
    return json.loads((GOLDEN / f"decode-types-{kind}-v1.values.json").read_text())


def decode_typed(
    transactions: Transactions, kind: str, table: str = "kinds", **options: Any
) -> Iterator[pa.RecordBatch]:
    """Record batches of a golden table with every type."""
    history = TableHistory.always(schemas_of(kind).tables[f"shop.{table}"])
    return _decode(transactions, f"shop.{table}", {"history": history, **options})


def _decode(transactions: Transactions, table: str, options: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Calls ``decode_transactions`` with its own arguments and with those of ``DecodeOptions``."""
    arguments = {name: options.pop(name) for name in ("history", "part", "stats") if name in options}
    return decode_transactions(transactions, table=table, options=DecodeOptions(**options), **arguments)


def find_events(transactions: Transactions, kinds: set[int]) -> Iterator[tuple[int, int]]:
    """Position and length of the events of some types."""
    for entry in transactions.entries:
        pos, end = int(entry["offset"]), int(entry["offset"] + entry["length"])
        while pos < end:
            length = int.from_bytes(transactions.buf[pos + 9 : pos + 13].tobytes(), "little")
            if int(transactions.buf[pos + 4]) in kinds:
                yield pos, length
            pos += length


def changed(transactions: Transactions, change: Callable[[np.ndarray[Any, np.dtype[np.uint8]]], None]) -> Transactions:
    """A copy with some bytes changed and the checksums of the events corrected."""
    buf = np.array(transactions.buf)
    change(buf)
    copy = Transactions(transactions.path, buf, transactions.has_checksum, transactions.entries)
    if transactions.has_checksum:
        for pos, length in find_events(copy, set(range(256))):
            crc = zlib.crc32(buf[pos : pos + length - 4].tobytes())
            buf[pos + length - 4 : pos + length] = np.frombuffer(crc.to_bytes(4, "little"), dtype=np.uint8)
    return copy


_WITH_KERNELS = ("cdc.decode.", "cdc.kernels.memory", "cdc.binlog.row_header")


@contextmanager
def uncompiled() -> Iterator[None]:
    """Runs the decoder's kernels as plain Python inside the block, except ``copy_bytes``, which is an intrinsic."""
    before: list[tuple[Any, str, Any]] = []
    for module in [module for name, module in sys.modules.items() if name.startswith(_WITH_KERNELS)]:
        for name, value in list(vars(module).items()):
            if hasattr(value, "py_func") and value.__module__.startswith(_WITH_KERNELS) and name != "copy_bytes":
                before.append((module, name, value))
                setattr(module, name, value.py_func)
    assert len(before) > 60
    try:
        with np.errstate(over="ignore"):  # hashes wrap on purpose
            yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)

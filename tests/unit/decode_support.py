"""What the tests of the decoder share: golden files, event surgery, and the kernels uncompiled."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.binlog.file import BinlogFile
from cdc.decode import buffers, events, layout, reader
from cdc.decode.events import Transactions
from cdc.decode.kernels import fill, rows, scan, single
from cdc.decode.reader import decode_transactions

GOLDEN = Path(__file__).parent.parent / "golden"
KINDS = ("mysql9", "mariadb10", "mariadb11")
TABLE = "shop.every"
KERNELS = (scan, single, rows, fill)
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
    return decode_transactions(transactions, table=TABLE, **{"columns": DECODABLE, **options})


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
    """A copy with some bytes changed, and the checksums of the events set right again."""
    buf = np.array(transactions.buf)
    change(buf)
    copy = Transactions(transactions.path, buf, transactions.has_checksum, transactions.entries)
    if transactions.has_checksum:
        for pos, length in find_events(copy, set(range(256))):
            crc = zlib.crc32(buf[pos : pos + length - 4].tobytes())
            buf[pos + length - 4 : pos + length] = np.frombuffer(crc.to_bytes(4, "little"), dtype=np.uint8)
    return copy


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, the decoder's kernels run as plain Python."""
    before: list[tuple[Any, str, Any]] = []
    for module in (*KERNELS, buffers, events, layout, reader):
        for name, value in list(vars(module).items()):
            if hasattr(value, "py_func") and value.__module__.startswith("cdc.decode."):
                before.append((module, name, value))
                setattr(module, name, value.py_func)
    assert len(before) > 30
    try:
        with np.errstate(over="ignore"):  # hashes wrap on purpose
            yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)

"""Which tables files hold rows of."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cdc.decode.faults import scan_fault
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.tables import count_row_events
from cdc.decode.transactions import Transactions, open_paths
from cdc.errors import DamagedError

_ROOM = 256


def list_tables(*paths: Path | str) -> dict[str, int]:
    """The tables that have rows in binlog files, segments or stores (folders), as ``db.table``, each with the number of
    its row events, most first. No row is decoded, and checksums inside indexed segments are not verified.

    What lies behind damage in a file is not seen. Raises UsageError for a path that is not there, DamagedError,
    StorageError.
    """
    found: dict[str, int] = {}
    for transactions, _, _ in open_paths(paths):
        for table, count in _count(transactions.between(0, None)).items():
            found[table] = found.get(table, 0) + count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _count(transactions: Transactions) -> dict[str, int]:
    begin, end = transactions.bounds()
    room = _ROOM
    while True:
        tables = np.zeros((room, 3), dtype=np.int64)
        slots = np.full(4 * room, -1, dtype=np.int64)
        ids = np.zeros((room, 2), dtype=np.int64)
        status, count, pos = count_row_events(transactions.buf, begin, end, transactions.tail, tables, slots, ids)
        if status != k.FULL:
            break
        room *= 8
    if status != k.OK:
        raise scan_fault(status, transactions.path, pos, 0, None)
    return {_name(transactions, at, size): events for at, size, events in tables[:count].tolist() if events}


def _name(transactions: Transactions, at: int, size: int) -> str:
    raw = transactions.buf[at : at + size].tobytes()
    db, table = raw[1 : 1 + raw[0]], raw[raw[0] + 3 : -1]
    try:
        return f"{db.decode()}.{table.decode()}"
    except UnicodeDecodeError:
        raise DamagedError("a table's name is not UTF-8", place=f"{transactions.path}, position {at}") from None

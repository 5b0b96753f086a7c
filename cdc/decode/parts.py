"""Large transactions in parts, so that several readers share one.

A part begins at a row event. What a reader needs to know of what lies before is little: how many row events of the
table there were, and which table maps are in force.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cdc.decode.cursor import Part, ScanCursor
from cdc.decode.faults import scan_fault
from cdc.decode.kernels import constants as k
from cdc.decode.table_maps import name_pattern
from cdc.decode.transactions import Transactions


def split_transaction(transactions: Transactions, table: str, size_bytes: int) -> Iterator[Part]:
    """Cut the one transaction into parts with about ``size_bytes`` of the table's row events each; none without any.

    Raises DamagedError, UnsupportedEventError, UnsupportedError.
    """
    begin, end = transactions.bounds()
    if len(begin) != 1:
        raise ValueError("parts are made of one transaction")
    cursor = ScanCursor(transactions.tail)
    cursor.state[k.SCAN_POS] = begin[0]
    name = name_pattern(table)
    room = max(16, int(transactions.entries["row_events"][0]) + 1)
    out = [np.empty(room, dtype=np.int64) for _ in range(6)]
    status = k.FULL
    while status == k.FULL:
        before = cursor.part_here()
        status, count = cursor.scan(transactions, begin, end, name, out, size_bytes)
        if status > k.FULL:
            state = cursor.state
            raise scan_fault(status, transactions.path, int(state[k.SCAN_BAD_POS]), int(state[k.SCAN_BAD_TYPE]), table)
        if count:
            stop = int(cursor.state[k.SCAN_POS]) if status == k.FULL else int(end[0])
            yield Part(before.start, stop, before.ordinal, before.maps)

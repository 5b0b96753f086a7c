"""Makes transactions without a server, as a program would put them into an event store."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from cdc.binlog.file import rows_to_entries, scan
from cdc.event_store.transaction import SourceFile, Transaction
from cdc.testing.binlog import BinlogBuilder


def transactions_of(
    log: BinlogBuilder, *, tables: Sequence[str] = ("shop.orders",), file: str = "binlog.000001", epoch: int = 0
) -> list[Transaction]:
    """Returns the transactions of a binlog made by hand, as if it were the source's file of this name."""
    numbers: dict[str, int] = {name: n for n, name in enumerate(tables)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.write_bytes(log.data)
        scanned = scan(path, epoch=epoch, number=lambda db, table: numbers.setdefault(f"{db}.{table}", len(numbers)))
    names = list(numbers)
    source = SourceFile(epoch, file, log.events[0], log.server_id)
    entries = rows_to_entries(scanned.rows)
    data = log.data
    transactions = []
    for n in range(len(entries)):
        entry = entries[n : n + 1].copy()
        offset, length, mask = (int(entry[key][0]) for key in ("offset", "length", "table_mask"))
        hit = tuple(name for bit, name in enumerate(names) if mask >> bit & 1)
        transactions.append(Transaction(entry, data[offset : offset + length], source, hit))
    return transactions


def make_transactions(
    count: int, *, rows: int = 3, tables: Sequence[str] = ("shop.orders",), ddl_every: int = 0
) -> list[Transaction]:
    """Returns ``count`` transactions of ``rows`` rows each, of the tables in turn; with ``ddl_every`` each n-th is a
    DDL."""
    log = BinlogBuilder()
    for n in range(count):
        db, _, table = tables[n % len(tables)].partition(".")
        if ddl_every and n % ddl_every == ddl_every - 1:
            log.ddl(f"ALTER TABLE {db}.{table} ADD COLUMN c{n} INT", db)
        else:
            log.transaction(db, table, list(range(n, n + rows)))
    return transactions_of(log, tables=tables)

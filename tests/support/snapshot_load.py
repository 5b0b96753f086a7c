"""Writers that change the keys that a snapshot reads, and the table as of a position, replayed from the store."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from cdc.config import DestinationConfig
from cdc.decode import DecodeOptions, read
from cdc.source.snapshot import SnapshotFiles
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server

State = dict[Any, dict[str, Any]]
_METADATA = ("_op", "_seq", "_row", "_commit_time", "_gtid", "_before")
_DELETE = 0


@contextmanager
def writing(server: Server, table: str, keys: int, threads: int, seed: int) -> Iterator[list[int]]:
    """Changes random rows of a table (id, v, w) by many connections: inserts, updates, deletes, changes of keys, in
    transactions of one to five statements. Yields a list that holds the number of transactions at the end."""
    stop = threading.Event()
    done = [0]

    def run(number: int) -> None:
        dice = random.Random(seed * 1000 + number)
        with server.connect() as connection, connection.cursor() as cursor:
            while not stop.is_set():
                try:
                    cursor.execute("BEGIN")
                    for _ in range(dice.choice((1, 1, 2, 5))):
                        _change(cursor, table, keys, dice)
                    cursor.execute("ROLLBACK" if dice.random() < 0.05 else "COMMIT")
                    done[0] += 1
                except pymysql.MySQLError as error:
                    if error.args[0] not in (1062, 1205, 1213, 1020):  # a key that exists, a deadlock
                        raise
                    cursor.execute("ROLLBACK")

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield done
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def _change(cursor: Any, table: str, keys: int, dice: random.Random) -> None:
    key, value = dice.randrange(keys), dice.randrange(1 << 40)
    kind = dice.random()
    if kind < 0.3:
        cursor.execute(
            f"INSERT INTO {table} VALUES (%s, %s, 'new') ON DUPLICATE KEY UPDATE v = %s", (key, value, value)
        )
    elif kind < 0.7:
        cursor.execute(f"UPDATE {table} SET v = %s WHERE id = %s", (value, key))
    elif kind < 0.85:
        cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
    else:
        cursor.execute(f"UPDATE {table} SET id = %s, v = %s WHERE id = %s", (dice.randrange(keys), value, key))


def wait_for(reader: StoreReader, seq: int, seconds: float = 60.0) -> None:
    """Waits until the store is complete up to a seq."""
    end = time.monotonic() + seconds
    while (reader.last_seq() or 0) < seq:
        assert time.monotonic() < end, f"the store ends at {reader.last_seq()}, before {seq}"
        time.sleep(0.05)


def changes(config: DestinationConfig, table: str, after: int, upto: int) -> Iterator[dict[str, Any]]:
    """The rows of changes in (after, upto]: the new row, or a delete of the old key."""
    options = DecodeOptions(after_seq=after, upto_seq=upto)
    for batch in read(config.store.path, table=table, options=options):
        yield from batch.to_pylist()


def as_of(config: DestinationConfig, table: str, upto: int) -> State:
    """The table as of a seq. The store has every change since the table was empty."""
    return applied({}, changes(config, table, 0, upto))


def applied(state: State, rows: Iterator[dict[str, Any]]) -> State:
    for row in rows:
        own = {name: value for name, value in row.items() if name not in _METADATA}
        if row["_op"] == _DELETE:
            state.pop(own["id"], None)
        else:
            state[own["id"]] = own
    return state


def rows_of(files: SnapshotFiles) -> list[dict[str, Any]]:
    """All rows of all chunks."""
    return [row for record in files.records() for batch in files.batches(record) for row in batch.to_pylist()]


def loaded(config: DestinationConfig, files: SnapshotFiles, low: int, high: int) -> State:
    """The table as a loader makes it: rows whose key does not change in (low, high], and the last state of the others."""
    rows = rows_of(files)
    later = list(changes(config, files.info.table, low, high))
    changed = {row["id"] for row in later}
    kept = [row for row in rows if row["id"] not in changed]
    state = {row["id"]: row for row in kept}
    assert len(state) == len(kept), "a key that does not change was read twice"
    return applied(state, iter(later))

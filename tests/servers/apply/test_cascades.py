"""The computed changes by foreign keys, which have no row events, against the rows that the server has then."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc.batches.manifest import Manifest, schemas_of
from cdc.batches.service import BatchService
from cdc.decode.layout import BEFORE
from cdc.decode.transactions import TableHistory
from cdc.lake.apply.foreign_keys.reach import transactions_of
from cdc.lake.apply.foreign_keys.search import CascadeSearch
from cdc.lake.foreign_keys.events import row_changes
from cdc.lake.runtime.session import TableSession
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.foreign_keys import RandomRows

Database = Callable[[Server], str]
SERVERS = ("mariadb11", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mariadb10", "mysql56")))


def no_session() -> TableSession:
    raise AssertionError("all rows are in the batch, so the lake is not asked")


def rows_after(loop: Loop, manifest: Manifest) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the compared columns of all rows after a batch that has all changes since the tables were empty."""
    schemas = schemas_of(manifest)
    assert schemas is not None
    keys = schemas.foreign_keys or {}
    search = CascadeSearch(
        loop.config, lambda table: [manifest], manifest.last_seq, schemas, no_session, lambda table: None
    )
    cascaded = search.run(keys)
    assert search.errors == {}
    after: dict[str, list[tuple[Any, ...]]] = {}
    for table in keys:
        names = [*(cascaded[table].child.compared if table in cascaded else schemas.tables[table].column_names)]
        key = [names.index(name) for name in schemas.tables[table].primary_key]
        changes: list[tuple[int, int, Any, Any]] = []
        history = TableHistory.always(schemas.tables[table])
        for part in row_changes(transactions_of([manifest], table), table, frozenset(names), history):
            for row in part.rows.to_pylist():
                old = row[BEFORE] and tuple(row[BEFORE][name] for name in names)
                new = None if row["_op"] == 0 else tuple(row[name] for name in names)
                changes.append((row["_seq"], row["_row"], old, new))
        if table in cascaded:
            changes += [(change.seq, change.row, change.before, change.after) for change in cascaded[table].changes]
        numbers = [(seq, row) for seq, row, _, _ in changes]
        assert len(numbers) == len({*numbers}), "two changes have the same number"
        present: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for _, _, old, new in sorted(changes, key=lambda change: change[:2]):
            if old is not None:
                assert present.pop(tuple(old[i] for i in key)) == old, "the row was another one before"
            if new is not None:
                present[tuple(new[i] for i in key)] = new
        after[table] = sorted(present.values(), key=repr)
        with loop.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(names)} FROM {table}")
            assert after[table] == sorted(cursor.fetchall(), key=repr), table
    return after


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.mark.parametrize("number", range(6))
def test_random_keys_and_changes(tmp_path: Path, server: Server, database: Database, seed: int, number: int) -> None:
    loop = Loop(tmp_path, server, database(server), start="now")
    loop.capture()
    rows = RandomRows(server, loop.db, random.Random(seed * 1000 + number))
    rows.create()
    rows.change(250)
    assert rows.executed > 100, rows.refused
    loop.capture()
    service = BatchService(loop.config)
    while (lease := service.get("test", wait_s=0)) is not None:
        if not lease.manifest.ddl:
            rows_after(loop, lease.manifest)
        service.ack(lease.manifest.batch, lease.token)

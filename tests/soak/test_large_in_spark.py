"""One transaction of a gigabyte through executors of one gigabyte, and values of a hundred megabytes.

``make test-soak`` runs them; $TOWPATH_LARGE_MB (1000) is the transaction's size.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import Loop

SIZE_MB = int(os.environ.get("TOWPATH_LARGE_MB", "1000"))
VALUE_BYTES = 100_000_000


def cluster(memory_mb: int) -> str:
    """Returns settings for two executors of one core and this much memory, in processes of their own."""
    return (
        f"{{master: 'local-cluster[2,1,{memory_mb}]', conf: {{spark.driver.memory: 1g,"
        f" spark.executor.memory: {memory_mb}m, spark.sql.shuffle.partitions: '16'}}}}"
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that accepts such values and transactions."""
    options = ["--max-allowed-packet=1G", "--max-binlog-cache-size=8G", "--innodb-log-file-size=2G"]
    with Server("mariadb10", options=options) as started:
        yield started
    session.discard()


def digests(path: Path) -> dict[int, str]:
    """Returns the SHA-1 of each row's text in UTF-8."""
    digest_by_id = {}
    for batch in DeltaTable(str(path)).to_pyarrow_dataset().to_batches(columns=["id", "v"], batch_size=256):
        for row in batch.to_pylist():
            digest_by_id[row["id"]] = hashlib.sha1(row["v"].encode(), usedforsecurity=False).hexdigest()
    return digest_by_id


def answers(server: Server, table: str) -> dict[int, str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, SHA1(CONVERT(v USING utf8mb4)) FROM {table}")
        return dict(cursor.fetchall())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_a_large_transaction(server: Server, database: Callable[[Server], str], tmp_path: Path, mode: str) -> None:
    db = database(server)
    loop = Loop(tmp_path, server, db, apply=f"mode: {mode}", spark=cluster(1024))
    loop.sql(
        "CREATE TABLE many (id BIGINT PRIMARY KEY, v VARCHAR(2000) CHARACTER SET latin1)",
        f"INSERT INTO many SELECT seq, RPAD(CONCAT(seq, '-'), 1000, SHA1(seq)) FROM {db}.seq_1_to_{SIZE_MB * 1000}",
    )
    loop.capture()
    loop.apply_all()
    expected = answers(server, f"{db}.many")
    assert len(expected) == SIZE_MB * 1000
    assert digests(loop.path("many")) == expected


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_large_values(server: Server, database: Callable[[Server], str], tmp_path: Path, mode: str) -> None:
    """New, changed and deleted values, and values in the same file as a small row that changes."""
    db = database(server)
    loop = Loop(tmp_path, server, db, apply=f"mode: {mode}", spark=cluster(1024))
    batches = [
        (
            "CREATE TABLE wide (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET latin1)",
            f"INSERT INTO wide VALUES (1, REPEAT('x', {VALUE_BYTES})), (2, 'small')",
            f"INSERT INTO wide VALUES (3, REPEAT('é', {VALUE_BYTES // 2}))",
        ),
        ("UPDATE wide SET v = CONCAT('y', v) WHERE id = 1", "DELETE FROM wide WHERE id = 3"),
        ("UPDATE wide SET v = 'another' WHERE id = 2",),
    ]
    for batch in batches if mode == "upsert" else batches[:1]:
        loop.sql(*batch)
        loop.capture()
        loop.apply_all()
        expected = answers(server, f"{db}.wide")
        assert digests(loop.path("wide")) == expected
    assert len(expected) == (2 if mode == "upsert" else 3)

"""One transaction of a gigabyte, and values of a hundred megabytes, through executors of one gigabyte.

``make test-soak`` runs them; $TOWPATH_LARGE_MB (1000) is the transaction's size.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.testing.servers import Server
from spark_jobs import session
from tests.integration.apply_support import Loop

SIZE_MB = int(os.environ.get("TOWPATH_LARGE_MB", "1000"))
VALUE_BYTES = 100_000_000
CLUSTER = (
    "{master: 'local-cluster[1,2,1024]', conf: {spark.driver.memory: 1g, spark.executor.memory: 1g,"
    " spark.sql.shuffle.partitions: '16'}}"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that takes such values and transactions."""
    options = ["--max-allowed-packet=1G", "--max-binlog-cache-size=8G", "--innodb-log-file-size=2G"]
    with Server("mariadb10", options=options) as started:
        yield started
    session.discard()


def digests(path: Path) -> dict[int, str]:
    """SHA-1 of each row's text, as MariaDB's SHA1() gives it."""
    found = {}
    for batch in DeltaTable(str(path)).to_pyarrow_dataset().to_batches(columns=["id", "v"], batch_size=256):
        for row in batch.to_pylist():
            found[row["id"]] = hashlib.sha1(row["v"].encode(), usedforsecurity=False).hexdigest()
    return found


def answers(server: Server, table: str) -> dict[int, str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, SHA1(v) FROM {table}")
        return dict(cursor.fetchall())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_large_transactions_and_values(
    server: Server, database: Callable[[Server], str], tmp_path: Path, mode: str
) -> None:
    db = database(server)
    loop = Loop(tmp_path, server, db, apply=f"mode: {mode}", spark=CLUSTER)
    loop.sql(
        "CREATE TABLE many (id BIGINT PRIMARY KEY, v VARCHAR(2000) CHARACTER SET latin1)",
        "CREATE TABLE wide (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET latin1)",
        f"INSERT INTO many SELECT seq, RPAD(CONCAT(seq, '-'), 1000, SHA1(seq)) FROM {db}.seq_1_to_{SIZE_MB * 1000}",
        f"INSERT INTO wide VALUES (1, REPEAT('x', {VALUE_BYTES})), (2, 'small'), (3, REPEAT('é', {VALUE_BYTES // 2}))",
    )
    loop.capture()
    loop.apply_all()
    for table, rows in (("many", SIZE_MB * 1000), ("wide", 3)):
        expected = answers(server, f"{db}.{table}")
        assert len(expected) == rows
        assert digests(loop.path(table)) == expected

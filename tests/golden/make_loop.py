"""Generates ``loop-v1.tar.gz``: the store, the meta and the tables of a pipeline that was stopped in the middle of a batch.

Run it at the commit whose formats must stay readable: ``PYTHONPATH=. python tests/golden/make_loop.py FILE``. It uses only
the ``cdc`` command, so it runs at any commit. Never replace an existing archive, because it represents the pipelines of
users.

The archive contains ``conf``, ``store``, ``meta``, ``lake`` and ``expected.json`` with the source's rows of each table. The
first batches are acked. The next one is outstanding with an expired lease, as after the crash of a driver: ``orders``
and ``journal`` have its changes, ``items`` does not. More transactions follow it in the store.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from cdc.testing.servers import PASSWORD, Server

CONF = """\
source: {{url: '{url}', password_env: TOWPATH_TEST_PASSWORD, server_id: 4242, start: earliest}}
tables: {{include: ['shop\\..*'], overrides: {{shop.journal: {{mode: append}}}}}}
store: {{path: ./store, segment_bytes: 65536, disk: {{warn_ratio: 1, clean_ratio: 1, stop_ratio: 1}}}}
meta: {{path: ./meta}}
apply: {{target: ./lake}}
batch: {{max_wait_s: 0}}
spark: {{master: 'local[2]', conf: {{spark.driver.memory: 1g}}}}
"""
TABLES = ("orders", "items", "journal", "late")


def cdc(folder: Path, *arguments: str) -> str:
    command = [
        sys.executable,
        "-c",
        "import sys; from cdc.cli.main import main; sys.exit(main(sys.argv[1:]))",
        *arguments,
    ]
    environment = {**os.environ, "TOWPATH_TEST_PASSWORD": PASSWORD, "PYTHONPATH": str(Path.cwd())}
    return subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def make(folder: Path, server: Server) -> None:
    (folder / "conf").mkdir()
    (folder / "conf" / "shop.yaml").write_text(CONF.format(url=server.url))
    server.execute(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20), price DECIMAL(8,2), at DATETIME(3))",
        "CREATE TABLE shop.items (id INT UNSIGNED PRIMARY KEY, kind ENUM('a','b'), raw VARBINARY(9))",
        "CREATE TABLE shop.journal (id BIGINT PRIMARY KEY, note TEXT)",
        "INSERT INTO shop.orders VALUES (1, 'book', 12.50, '2025-01-02 03:04:05.678'), (2, 'tea', 3.20, NULL)",
        "INSERT INTO shop.items VALUES (4000000000, 'a', x'00ff')",
        "INSERT INTO shop.journal VALUES (1, 'one'), (2, 'two')",
    )
    cdc(folder, "capture", "shop", "--until-current")
    cdc(folder, "apply", "shop", "--until-empty")
    server.execute(
        "FLUSH BINARY LOGS",
        "CREATE INDEX what ON shop.orders (what)",
        "CREATE TABLE shop.late (a INT NOT NULL, b CHAR(3) NOT NULL, v DOUBLE, PRIMARY KEY (a, b))",
        "INSERT INTO shop.late VALUES (1, 'x', 0.5)",
    )
    cdc(folder, "capture", "shop", "--until-current")
    cdc(folder, "apply", "shop", "--until-empty")
    server.execute(
        "UPDATE shop.orders SET price = 13 WHERE id = 1",
        "INSERT INTO shop.items VALUES (7, 'b', NULL)",
        "DELETE FROM shop.orders WHERE id = 2",
        "INSERT INTO shop.journal VALUES (3, 'three')",
        "UPDATE shop.journal SET note = 'TWO' WHERE id = 2",
    )
    cdc(folder, "capture", "shop", "--until-current")
    cdc(folder, "batch", "get", "shop", "--owner", "killed", "--lease", "1")
    time.sleep(2)  # the lease expires
    for name in ("meta", "lake/shop/items"):
        shutil.copytree(folder / name, folder / f"{name}.before")
    cdc(folder, "apply", "shop", "--until-empty", "--wait", "5")
    for name in ("meta", "lake/shop/items"):
        shutil.rmtree(folder / name)
        (folder / f"{name}.before").rename(folder / name)
    server.execute(
        "FLUSH BINARY LOGS",
        "INSERT INTO shop.orders VALUES (3, 'ink', 0.99, '2025-05-06 07:08:09')",
        "UPDATE shop.items SET kind = 'b', raw = x'01' WHERE id = 4000000000",
        "INSERT INTO shop.journal VALUES (4, 'four')",
        "ALTER TABLE shop.items ADD INDEX (kind)",
        "DELETE FROM shop.items WHERE id = 7",
        "UPDATE shop.late SET v = 1.5",
    )
    cdc(folder, "capture", "shop", "--until-current")


def expected(server: Server) -> dict[str, list[dict[str, str | None]]]:
    """Returns the rows of each table, with values as text and bytes in hexadecimal."""
    rows_by_table = {}
    with server.connect() as connection, connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT * FROM shop.{table} ORDER BY 1")
            names = [column[0] for column in cursor.description]
            rows_by_table[table] = [
                {
                    n: v.hex() if isinstance(v, bytes) else None if v is None else str(v)
                    for n, v in zip(names, row, strict=True)
                }
                for row in cursor.fetchall()
            ]
    return rows_by_table


def main(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary, Server("mysql9") as server:
        folder = Path(temporary) / "loop"
        folder.mkdir()
        make(folder, server)
        (folder / "expected.json").write_text(json.dumps(expected(server), indent=1))
        with tarfile.open(archive, "w:gz") as tar:
            for path in sorted(folder.iterdir()):
                tar.add(path, path.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())

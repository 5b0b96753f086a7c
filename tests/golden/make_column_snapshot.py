"""Makes ``snapshot-v2``: the files of a small snapshot of the key and one column, read from a real MariaDB.

python -m tests.golden.make_column_snapshot
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cdc.capture import Capture
from cdc.source import snapshot
from cdc.testing.servers import Server
from tests.support.snapshots import identity, write_config

GOLDEN = Path(__file__).with_name("snapshot-v2")


def main() -> None:
    with Server("mariadb11") as server, tempfile.TemporaryDirectory() as folder:
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (day DATE, id INT PRIMARY KEY, note TEXT, total DECIMAL(10,2))",
            "INSERT INTO shop.orders VALUES ('2026-01-01', 1, 'x', 1.50), ('2026-01-02', 2, NULL, -2)",
        )
        config = write_config(
            server,
            Path(folder),
            "shop\\..*",
            apply={"mode": "upsert", "columns": {"total": {"rename": "amount"}}},
            snapshot={"parallel": 1},
        )
        Capture(config).run(until_current=True)
        columns = {"shop.orders": ["total"]}
        files = snapshot.take_all(config, ["shop.orders"], identity(server), columns=columns)["shop.orders"]
        assert isinstance(files, snapshot.SnapshotFiles), files
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(files.folder.uri, GOLDEN)


if __name__ == "__main__":
    main()

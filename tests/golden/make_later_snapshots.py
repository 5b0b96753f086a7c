"""Makes ``snapshot-v2`` and ``snapshot-v3``: the files of small snapshots of the key and one column, and of a part of
the rows, read from a real MariaDB.

python -m tests.golden.make_later_snapshots
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cdc.capture import Capture
from cdc.source import snapshot
from cdc.source.snapshot.parts import Comparison, PartRecord
from cdc.testing.servers import Server
from tests.support.snapshots import identity, write_config

GOLDEN = Path(__file__).parent
PART = PartRecord(comparisons=(Comparison(column="id", operator=">=", values=("2",), kind="number"),))


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
        for name, options in (
            ("snapshot-v2", {"columns": {"shop.orders": ["total"]}}),
            ("snapshot-v3", {"parts": {"shop.orders": PART}}),
        ):
            files = snapshot.take_all(config, ["shop.orders"], identity(server), **options)["shop.orders"]
            assert isinstance(files, snapshot.SnapshotFiles), files
            shutil.rmtree(GOLDEN / name, ignore_errors=True)
            shutil.copytree(files.folder.uri, GOLDEN / name)


if __name__ == "__main__":
    main()

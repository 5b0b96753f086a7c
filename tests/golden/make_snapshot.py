"""Makes ``snapshot-v1``: the files of a small snapshot, read from a real MariaDB.

python -m tests.golden.make_snapshot
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cdc.capture import Capture
from cdc.source import snapshot
from cdc.testing.servers import Server
from tests.support.snapshots import identity, write_config

GOLDEN = Path(__file__).with_name("snapshot-v1")


def main() -> None:
    with Server("mariadb11") as server, tempfile.TemporaryDirectory() as folder:
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (code VARCHAR(8) CHARACTER SET latin1, day DATE, total DECIMAL(10,2), note TEXT, "
            "PRIMARY KEY (day, code))",
            "INSERT INTO shop.orders VALUES ('ä1', '2026-01-01', 1.50, 'x'), ('b', '2026-01-01', -2, NULL), "
            "('c', '2026-01-02', 0, '😀')",
        )
        columns = {"note": {"rename": "remark"}}
        config = write_config(
            server,
            Path(folder),
            "shop\\..*",
            apply={"mode": "upsert", "columns": columns},
            snapshot={"chunk_rows": 2, "parallel": 1},
        )
        Capture(config).run(until_current=True)
        files = snapshot.take(config, "shop.orders", identity(server))
        files.mark_loaded(files.high_seq(), files.high_seq())
        shutil.rmtree(GOLDEN, ignore_errors=True)
        shutil.copytree(files.folder.uri, GOLDEN)


if __name__ == "__main__":
    main()

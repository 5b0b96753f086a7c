"""Generates ``archive-v1``: an archive in format version 1 of a store that was captured from a real MySQL server.

Run it once for each version of the format: ``PYTHONPATH=. python tests/golden/make_archive.py FOLDER``. Never replace an existing
archive, because it represents the archives of users.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from cdc.batches.service import BatchService
from cdc.capture import Capture
from cdc.config import load
from cdc.config.archive import ArchiveConfig
from cdc.copies.archive.writer import Archiver
from cdc.testing.servers import PASSWORD, Server


def main(folder: Path) -> None:
    """Archives three segments with two tables, DDL statements and position entries, of which a part is acked."""
    os.environ["TOWPATH_TEST_PASSWORD"] = PASSWORD
    with tempfile.TemporaryDirectory(dir="/var/lib") as host, Server("mysql9") as server:
        conf = Path(host) / "conf" / "shop.yaml"
        conf.parent.mkdir(parents=True)
        conf.write_text(
            f"source: {{url: '{server.url}', password_env: TOWPATH_TEST_PASSWORD, server_id: 4242, start: earliest}}\n"
            f"tables: {{include: ['shop\\..*']}}\nstore: {{path: ./store, archive: 'file://{folder.absolute()}'}}\n"
            "meta: {path: ./meta}\napply: {target: ./lake}\nbatch: {max_wait_s: 0}\n"
        )
        config = load(conf)
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20), price DECIMAL(8,2))",
            "CREATE TABLE shop.items (id INT UNSIGNED PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (1, 'book', 12.50), (2, 'tea', 3.20)",
            "FLUSH BINARY LOGS",
            "INSERT INTO shop.items VALUES (4000000000)",
            "UPDATE shop.orders SET price = 13 WHERE id = 1",
            "FLUSH BINARY LOGS",
            "ALTER TABLE shop.items ADD COLUMN note VARCHAR(10)",
            "INSERT INTO shop.items VALUES (7, 'last')",
            "FLUSH BINARY LOGS",
            "DELETE FROM shop.orders WHERE id = 2",
        )
        config = config.model_copy(update={"store": config.store.model_copy(update={"archive": ArchiveConfig()})})
        Capture(config).run(until_current=True)
        config = load(conf)
        service = BatchService(config)
        for _ in range(2):
            lease = service.get("golden", wait_s=0)
            assert lease is not None
            service.ack(lease.batch, lease.token)
        with patch("socket.gethostname", return_value="store-host"):
            Archiver(config).run(everything=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Generates ``store-v1``: a store in format version 1, captured from a real MariaDB server.

Run it once for each version of the formats: ``PYTHONPATH=. python tests/golden/make_store.py FOLDER``. Never replace an existing
store, because it represents the stores of users.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from cdc.capture import Capture
from cdc.config import load
from cdc.testing.servers import PASSWORD, Server


def main(folder: Path) -> None:
    """Captures two segments with two tables, DDL statements and position entries."""
    os.environ["TOWPATH_TEST_PASSWORD"] = PASSWORD
    conf = folder / "conf" / "shop.yaml"
    conf.parent.mkdir(parents=True)
    with Server("mariadb10") as server:
        conf.write_text(
            f"source: {{url: '{server.url}', password_env: TOWPATH_TEST_PASSWORD, server_id: 4242, start: earliest}}\n"
            "tables: {include: ['shop\\..*']}\nstore: {path: ./store, segment_bytes: 65536}\nmeta: {path: ./meta}\n"
            "apply: {target: ./lake}\n"
        )
        config = load(conf)
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20), price DECIMAL(8,2))",
            "CREATE TABLE shop.items (id INT UNSIGNED PRIMARY KEY)",
            "INSERT INTO shop.orders VALUES (1, 'book', 12.50), (2, 'tea', 3.20)",
            "INSERT INTO shop.items VALUES (4000000000)",
        )
        Capture(config).run(until_current=True)
        server.execute(
            "FLUSH BINARY LOGS",
            "CREATE DATABASE other",
            "CREATE TABLE other.t (id INT PRIMARY KEY)",
            "INSERT INTO other.t VALUES (1)",
            "UPDATE shop.orders SET price = 13 WHERE id = 1",
            "ALTER TABLE shop.items ADD COLUMN note VARCHAR(10)",
            "INSERT INTO shop.items VALUES (7, 'last')",
            "DELETE FROM shop.orders WHERE id = 2",
            "INSERT INTO other.t VALUES (2)",
        )
        Capture(config).run(until_current=True)
    shutil.rmtree(folder / "meta")
    (folder / "store" / "lock").unlink()
    conf.unlink()
    conf.parent.rmdir()
    for path in (folder / "store").iterdir():
        path.rename(folder / path.name)
    (folder / "store").rmdir()
    print(json.dumps(sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()), indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())

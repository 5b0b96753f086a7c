"""The configuration of a destination whose changes Canal's clients read."""

from __future__ import annotations

from pathlib import Path

from cdc.capture import Capture
from cdc.config import load
from cdc.testing.servers import HOST, USER, Server
from tests.support.configurations import server_id_of


def write_shop(folder: Path, server: Server, database: str) -> Path:
    """Writes ``conf/shop.yaml`` for a database of MySQL, from now on. The password is in TOWPATH_TEST_PASSWORD."""
    (folder / "conf").mkdir()
    file = folder / "conf" / "shop.yaml"
    file.write_text(
        f"source: {{url: 'mysql://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {server_id_of(file)}, start: now}}\n"
        f"tables: {{include: ['{database}\\..*']}}\nstore: {{path: data/store}}\nmeta: {{path: data/meta}}\n"
        "apply: {target: ./lake}\n"
    )
    return file


def capture(file: Path) -> None:
    """Captures what the source has."""
    Capture(load(file)).run(until_current=True)

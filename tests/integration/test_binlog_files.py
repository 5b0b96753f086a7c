"""Changes in a folder of binlog files arrive in Delta as those of a server do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.config import load as load_config
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.load import APPEND, Load


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_the_lake_equals_the_source(
    kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str], tmp_path: Path, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    loop = Loop(tmp_path, server, db, overrides=f"DB.{APPEND}: {{mode: append}}")
    start = loop.config.source.start
    files = tmp_path / "files"
    files.mkdir()
    file = loop.config.file
    file.write_text(re.sub(r"source: \{.*\}\n", f"source: {{url: 'binlog://{files}'}}\n", file.read_text(), count=1))
    loop.config = load_config(file)
    load = Load(server, db, seed)
    for turn in range(3):
        load.run(50)
        if turn == 1:
            server.execute("FLUSH BINARY LOGS")
            load.run(20)
        if turn == 2:
            server.execute(
                f"ALTER TABLE {db}.accounts ADD COLUMN extra INT DEFAULT 7 AFTER id",
                f"UPDATE {db}.accounts SET extra = 8 WHERE id % 2 = 1",
            )
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            for name, *_ in cursor.fetchall():
                if name >= start.file:  # type: ignore[union-attr]
                    (files / name).write_bytes((server.data / name).read_bytes())
        loop.capture()
        loop.apply_all(None if turn else 10)
    loop.require_load(load)

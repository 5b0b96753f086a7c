"""Changes that the source compresses arrive in Delta: transactions on MySQL, row events on MariaDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.load import APPEND, Load


def switch(server: Server, *, on: bool) -> None:
    word = "ON" if on else "OFF"
    if server.kind.name == "mysql9":
        server.execute(f"SET GLOBAL binlog_transaction_compression = {word}")
    else:
        server.execute(
            f"SET GLOBAL log_bin_compress_min_len = {'10' if on else 'DEFAULT'}",
            f"SET GLOBAL log_bin_compress = {word}",
        )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mysql9", "mariadb10", "mariadb11"])
def test_the_lake_equals_the_source(
    kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str], tmp_path: Path, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    loop = Loop(tmp_path, server, db, overrides=f"DB.{APPEND}: {{mode: append}}")
    load = Load(server, db, seed)
    for turn in range(3):
        load.run(20)
        switch(server, on=True)
        try:
            load.run(60)
        finally:
            switch(server, on=False)
        loop.capture()
        loop.apply_all(None if turn else 10)
    loop.require_load(load)

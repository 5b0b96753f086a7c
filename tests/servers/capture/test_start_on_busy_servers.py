"""``source.start: now`` on a server that writes, and rotates, all the time: the end of its binlog is always a position that
its files have."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pymysql.cursors import Cursor

from cdc.capture.start import find_start
from cdc.config import load
from cdc.meta import open_meta
from cdc.source.connection import connect
from cdc.testing.servers import HOST, USER, Server
from tests.support.writing import BackgroundWriter

_STARTS = 60


def test_a_first_start_now(server: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    db = database(server)
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    flavor = "mysql" if server.kind.name == "mysql9" else "mariadb"
    places = []

    def insert(cursor: Cursor, number: int) -> None:
        cursor.execute(f"INSERT INTO {db}.t VALUES ({number})")

    def rotate(cursor: Cursor, _: int) -> None:
        cursor.execute("FLUSH BINARY LOGS")
        time.sleep(0.02)

    with BackgroundWriter(server, insert) as writer, BackgroundWriter(server, rotate) as rotating:
        writer.wait(10)
        for n in range(_STARTS):
            file = tmp_path / f"{n}" / "shop.yaml"
            file.parent.mkdir()
            file.write_text(
                f"source: {{url: '{flavor}://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
                f" server_id: 4712, start: now}}\n"
                f"tables: {{include: ['{db}\\..*']}}\nstore: {{path: store}}\nmeta: {{path: meta}}\napply: {{target: lake}}\n"
            )
            config = load(file)
            with connect(config.source) as connection:
                places.append(find_start(config, connection, open_meta(config), None).position)
        writer.wait(1)
        rotating.wait(1)
    assert places == sorted(places, key=lambda place: (place.file_number, place.pos))

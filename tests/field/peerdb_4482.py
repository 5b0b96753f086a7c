"""Snapshots of many chunks over keys of texts: UUIDs in letters of both cases, under collations that compare letters in
their own ways, with blanks at the end, in two columns. Rows change, come and go while they are read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pymysql.cursors import Cursor

from cdc.lake.jobs.snapshot import take_snapshots
from cdc.testing.servers import Server
from tests.field.case import Scenario
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.ddl_loop import delta_rows, shown_rows
from tests.support.writing import BackgroundWriter

_COUNT = 240
_KEYS = {
    "ci": "k VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_520_ci",
    "bin": "k VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "german": "k CHAR(40) CHARACTER SET latin1 COLLATE latin1_german2_ci",
    "bytes": "k VARBINARY(40)",
    "pair": "k VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
}


def _key(number: int) -> str:
    """Returns one of the keys, no two of which are equal under any of the collations."""
    text = hashlib.md5(str(number).encode()).hexdigest()
    text = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
    if number % 5 == 4:
        return ("ß", "Ä", "é", "z")[number // 5 % 4] + text[:20]
    return text.upper() if number % 3 else text


def run(folder: Path, server: Server, db: str) -> None:
    loop = Loop(folder, server, db, start="snapshot", snapshot="{chunk_rows: 7, max_rows_per_s: 500}")
    for table, column in _KEYS.items():
        key, n = ("k, n", "n INT NOT NULL, ") if table == "pair" else ("k", "")
        loop.sql(f"CREATE TABLE `{table}` ({column} NOT NULL, {n}v INT, PRIMARY KEY ({key}))")
        rows = ", ".join(
            f"('{_key(number)}', {f'{number % 4}, ' if table == 'pair' else ''}{number})" for number in range(_COUNT)
        )
        loop.sql(f"INSERT INTO `{table}` VALUES {rows}")

    def write(cursor: Cursor, number: int) -> None:
        cursor.execute("BEGIN")
        for table in _KEYS:
            cursor.execute(f"UPDATE {db}.`{table}` SET v = v + 1000 WHERE k = '{_key(number * 7 % _COUNT)}'")
            cursor.execute(f"DELETE FROM {db}.`{table}` WHERE k = '{_key(number * 11 % _COUNT)}'")
            n = "0, " if table == "pair" else ""
            cursor.execute(f"INSERT INTO {db}.`{table}` VALUES ('{_key(_COUNT + number)}', {n}{number})")
            cursor.execute(
                f"UPDATE {db}.`{table}` SET k = '{_key(10**6 + number)}' WHERE k = '{_key(number * 13 % _COUNT)}'"
            )
        cursor.execute("COMMIT")
        cursor.execute("DO SLEEP(0.02)")

    loop.capture()
    with capturing(loop.config), BackgroundWriter(server, write) as writer:
        results = take_snapshots(loop.config)
        writer.wait(5)
    assert [result.table for result in results] == sorted(f"{db}.{table}" for table in _KEYS)
    assert all(result.chunks > 20 for result in results)
    loop.capture()
    loop.apply_all()
    for table in _KEYS:
        shown = shown_rows(server, db, table)
        assert len(shown[1]) > 100
        assert delta_rows(loop.config, db, table) == shown


CASE = Scenario(
    report="PeerDB-io/peerdb#4482",
    problem="A snapshot can be split into ranges of UUID keys only if all keys are written in the same case.",
    run=run,
)

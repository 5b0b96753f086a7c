"""SIGKILL of a program that reads ``cdc.stream``: nothing is lost, and nothing that was acked comes twice.

``TOWPATH_KILLS`` sets how often (twice, unless ``make test-kill`` sets it).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.processes import heed_sigint, read_whole_lines
from tests.support.versions import status_statement
from tests.support.writing import RowWriter

KILLS = int(os.environ.get("TOWPATH_KILLS", "2"))


def start(server: Server, db: str, store: str, folder: Path, begin: str) -> subprocess.Popen[bytes]:
    flavor = "mysql" if server.kind.name.startswith("mysql") else "mariadb"
    url = f"{flavor}://{USER}@{HOST}:{server.port}"
    words = [url, PASSWORD, rf"{db}\..*", store, str(folder / "state"), str(folder / "journal"), begin]
    with open(folder / "log", "ab") as log:
        command = [sys.executable, "-m", "tests.fault.stream_program", *words]
        return subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=heed_sigint)


def check(lines: list[str]) -> set[int]:
    """Follows a journal: rows come in order, and after a rollback or a new start from the first that is not acked.
    Returns the rows that were seen. A kill may have come between an ack and its line."""
    acked = before = highest = 0
    is_new = False
    for number, line in enumerate(lines):
        word, _, text = line.partition(" ")
        where = f"line {number}: {line} after {before}, acked {acked}"
        if word == "open":
            is_new = True
            continue
        row = int(text)
        if word == "acked":
            acked = row
            continue
        if is_new:
            assert acked < row <= highest + 1, where
            acked = row - 1
        assert row > acked, where
        assert is_new or row in (before + 1, acked + 1), where
        before, highest, is_new = row, max(highest, row), False
    return set(range(1, highest + 1))


@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_killed_programs_go_on_at_the_first_unacked(
    kind: str, store: str, request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    db: str = request.getfixturevalue("database")(server)
    journal = tmp_path / "journal"
    journal.touch()
    moments = random.Random(seed)
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v INT)")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(status_statement(server))
        file, pos = cursor.fetchone()[:2]  # type: ignore[index]
    begin = json.dumps({"file": file, "pos": pos})
    with RowWriter(server, f"{db}.t") as writer:
        for _ in range(KILLS):
            size = journal.stat().st_size
            process = start(server, db, store, tmp_path, begin)
            deadline = time.monotonic() + 120
            while journal.stat().st_size < size + 100:
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline, "nothing comes"
                time.sleep(0.01)
            time.sleep(moments.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
            check(read_whole_lines(journal))
    last = writer.last
    process = start(server, db, store, tmp_path, begin)
    deadline = time.monotonic() + 120
    seen = set[int]()
    while last not in seen:
        assert time.monotonic() < deadline and process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.1)
        lines = journal.read_text().rpartition("\n")[0].splitlines()
        seen = check(lines)
    process.send_signal(signal.SIGINT)  # Ctrl-C ends it at once, and it closes its stream
    assert process.wait(30) != 0
    assert seen == set(range(1, last + 1))

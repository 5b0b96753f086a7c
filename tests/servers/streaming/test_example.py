"""The example of the page on streams does what it says: it follows a table, and survives kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.processes import heed_sigint

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "examples" / "stream" / "search_index.py"


def start(server: Server, db: str, folder: Path) -> subprocess.Popen[bytes]:
    url = f"mariadb://{USER}@{HOST}:{server.port}"
    words = [url, rf"{db}\.customers", str(folder / "state"), str(folder / "index.json")]
    environment = {**os.environ, "CDC_SOURCE_PASSWORD": PASSWORD, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(PROGRAM), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, preexec_fn=heed_sigint)
    assert process.stdout is not None and process.stdout.readline() == b"reading\n"
    return process


def wait_for(file: Path, index: dict[str, str]) -> None:
    deadline = time.monotonic() + 60
    while not file.exists() or json.loads(file.read_text()) != index:
        assert time.monotonic() < deadline, file.read_text() if file.exists() else "no index"
        time.sleep(0.02)


def test_the_index_follows_the_table(mariadb11: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    db, file = database(mariadb11), tmp_path / "index.json"
    mariadb11.execute(f"CREATE TABLE {db}.customers (id INT PRIMARY KEY, name VARCHAR(40))")
    process = start(mariadb11, db, tmp_path)
    mariadb11.execute(f"INSERT INTO {db}.customers VALUES (1, 'Ada'), (2, 'Grace')")
    wait_for(file, {"1": "Ada", "2": "Grace"})
    process.kill()
    process.wait()
    mariadb11.execute(
        f"UPDATE {db}.customers SET name = 'Edsger' WHERE id = 2", f"DELETE FROM {db}.customers WHERE id = 1"
    )
    process = start(mariadb11, db, tmp_path)
    wait_for(file, {"2": "Edsger"})
    mariadb11.execute(
        f"ALTER TABLE {db}.customers ADD COLUMN since DATE", f"INSERT INTO {db}.customers VALUES (3, 'Barbara', NULL)"
    )
    wait_for(file, {"2": "Edsger", "3": "Barbara"})
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0

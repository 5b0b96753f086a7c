"""The command ``cdc server`` with captures, and ``cdc instance``: kills of the server, two servers, another source."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc.config import load
from cdc.store.formats.state import is_locked
from cdc.testing.servers import Server
from tests.fault.support import wait_for
from tests.servers.server.test_instances import CANAL, ROLES, is_alive, rows
from tests.support.canal_client import RawClient
from tests.support.instances import OPERATOR, Operator, captures, change, write

Database = Callable[[Server], str]


@dataclass
class Process:
    """A running ``cdc server``."""

    process: subprocess.Popen[bytes]
    url: str
    canal_port: int


@contextmanager
def serving(conf: Path) -> Iterator[Process]:
    log = conf.parent / f"server-{time.monotonic_ns()}.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "cdc", "--conf-dir", str(conf), "server", "--http", "0", "--port", "0"]
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "NO_COLOR": "1"})
    pattern = re.compile(r"Serving .* at (http://\S+)\.\n(?:.*\n)*?Serving .* to Canal's clients at \S+:(\d+)\.")
    try:
        wait_for(lambda: pattern.search(log.read_text()) is not None or process.poll() is not None, "the server")
        match = pattern.search(log.read_text())
        assert match is not None, log.read_text()
        yield Process(process, match[1], int(match[2]))
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait()


def instance(conf: Path, *arguments: str, token: str | None = None) -> tuple[int, Any, str]:
    """Runs ``cdc instance … --json``: exit code, document, and what it says."""
    env = {name: value for name, value in os.environ.items() if name != "CDC_SERVER_TOKEN"}
    if token is not None:
        env["CDC_SERVER_TOKEN"] = token
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(conf), "instance", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def ids(batch_rows: list[dict[str, str | None]]) -> list[str | None]:
    return [row["id"] for row in batch_rows]


def test_a_killed_server_takes_its_captures_along(mysql9: Server, database: Database, tmp_path: Path) -> None:
    conf, sources = tmp_path / "conf", {name: database(mysql9) for name in ("first", "second")}
    for name, db in sources.items():
        mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
        write(conf, name, mysql9, db, capture="always", **ROLES, **CANAL)
    with serving(conf) as server:
        operator = Operator(server.url, OPERATOR)
        pids = [operator.wait(name, captures)["capture"]["pid"] for name in sources]
        client = RawClient(server.canal_port, "first").login().subscribe()
        mysql9.execute(f"INSERT INTO {sources['first']}.t VALUES (1)")
        assert ids(rows(client, 1)) == ["1"]
        os.kill(pids[1], signal.SIGSTOP)  # one that cannot notice anything by itself
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(map(is_alive, pids)), "the captures to die", 5)
        stores = [load(conf / f"{name}.yaml").store.path for name in sources]
        wait_for(lambda: not any(map(is_locked, stores)), "their locks to be released", 5)
    mysql9.execute(*(f"INSERT INTO {db}.t VALUES (2)" for db in sources.values()))
    with serving(conf) as server:
        client, seen = RawClient(server.canal_port, "first").login().subscribe(), []
        while "2" not in seen:
            seen += ids(rows(client, 1))
        assert seen in (["1", "2"], ["2"])  # what was acked shortly before the kill may come again
        assert ids(rows(RawClient(server.canal_port, "second").login().subscribe(), 1)) == ["2"]
        pids = [entry["capture"]["pid"] for entry in Operator(server.url, OPERATOR).list().values()]
        server.process.terminate()
        assert server.process.wait(60) == 0
        assert not any(map(is_alive, pids))


@pytest.mark.long
def test_commands_see_and_change_what_a_server_runs(mysql9: Server, database: Database, tmp_path: Path) -> None:
    conf, db = tmp_path / "conf", database(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    file = write(conf, "shop", mysql9, db, capture="always", **ROLES, **CANAL)
    with serving(conf) as server:
        at = ("--url", server.url)
        pid = Operator(server.url, OPERATOR).wait("shop", captures)["capture"]["pid"]
        code, document, _ = instance(conf, "list", *at)
        assert (code, [entry["capture"]["pid"] for entry in document["instances"]]) == (0, [pid])
        code, document, _ = instance(conf, "stop", "shop", *at)
        assert (code, document["instances"][0]["state"]) == (0, "stopped")
        assert not is_alive(pid)
        # Another server keeps to the stop, until it is started by the first.
        with serving(conf) as second:
            assert instance(conf, "list", "shop", "--url", second.url)[1]["instances"][0]["state"] == "stopped"
        assert instance(conf, "start", "shop", *at)[0] == 0
        with serving(conf) as second:
            code, document, _ = instance(conf, "list", "shop", "--url", second.url)
            assert document["instances"][0]["state"] == "standby"
            holder = f"another cdc server (process {server.process.pid}) holds this lock"
            assert document["instances"][0]["leader"]["holder"] == holder
            code, _, said = instance(conf, "stop", "shop", "--url", second.url)
            assert (code, "another server on this machine has this destination" in said) == (1, True)
            Operator(server.url, OPERATOR).wait("shop", captures)
            server.process.kill()
            server.process.wait()
            Operator(second.url, OPERATOR).wait("shop", captures)
            code, document, _ = instance(conf, "logs", "shop", "--lines", "5", "--url", second.url)
            assert (code, document["destination"]) == (0, "shop")
            change(file, batch={"max_transactions": 7})
            assert instance(conf, "reload", "--url", second.url)[0] == 0
            assert instance(conf, "list", "--url", second.url, token="wrong" * 8)[0] == 2
    code, _, said = instance(conf, "list", *at)
    assert (code, "the server did not answer" in said) == (1, True)


@pytest.mark.long
def test_another_source_in_the_place_of_the_first(
    mysql9: Server, mariadb11: Server, database: Database, tmp_path: Path
) -> None:
    conf, db, other = tmp_path / "conf", database(mysql9), database(mariadb11)
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    file = write(conf, "shop", mysql9, db, capture="always", **ROLES, **CANAL)
    before = file.read_bytes()
    with serving(conf) as server:
        operator = Operator(server.url, OPERATOR)
        operator.wait("shop", captures)
        client = RawClient(server.canal_port).login().subscribe()
        write(conf, "shop", mariadb11, other, capture="always", **ROLES, **CANAL)
        failed = operator.wait("shop", lambda entry: entry["capture"]["state"] == "failed")
        assert (failed["state"], failed["error"]["retryable"]) == ("failed", False)
        assert "belongs to a source" in failed["error"]["message"]
        mysql9.execute(f"INSERT INTO {db}.t VALUES (1)")
        file.write_bytes(before)
        operator.wait("shop", captures)
        assert ids(rows(client, 1)) == ["1"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_kills_of_captures_and_servers_lose_nothing(
    mysql9: Server, database: Database, tmp_path: Path, seed: int
) -> None:
    """A client reads on while captures and the server are killed at random."""
    import random

    rng = random.Random(seed)
    conf, db = tmp_path / "conf", database(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    write(conf, "shop", mysql9, db, capture="always", **ROLES, **CANAL)
    seen: list[str | None] = []
    written = 0
    for _ in range(3):
        with serving(conf) as server:
            operator = Operator(server.url, OPERATOR)
            operator.wait("shop", captures)
            client = RawClient(server.canal_port).login().subscribe()
            for _ in range(3):
                for _ in range(rng.randrange(1, 30)):
                    written += 1
                    mysql9.execute(f"INSERT INTO {db}.t VALUES ({written})")
                pid = operator.one("shop")["capture"]["pid"]
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                written += 1
                mysql9.execute(f"INSERT INTO {db}.t VALUES ({written})")
                while f"{written}" not in seen:
                    seen += ids(rows(client, 1))
            server.process.kill()
    # What was acked shortly before a kill of the server may come again, in order.
    assert list(dict.fromkeys(seen)) == [f"{number}" for number in range(1, written + 1)]

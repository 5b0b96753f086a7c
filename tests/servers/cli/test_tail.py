"""``cdc tail`` on stores of real servers: order, filters, policies, DDL, following, terminals, and what may go wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from cdc.capture import Capture
from cdc.cli.main import main
from cdc.store.formats.missing import Removed, finish_removal, removal_lock, write_removed
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.server import client_config, server_process, with_tokens

Database = Callable[[Server], str]
KEYS = ["table", "seq", "row", "op", "commit_time", "gtid", "file", "pos", "before", "after"]


def command(loop: Loop, *words: str) -> list[str]:
    return [sys.executable, "-m", "cdc", "--conf-dir", str(loop.config.file.parent), *words]


class Asked:
    """The answers of the command for one destination."""

    def __init__(self, loop: Loop, capfd: pytest.CaptureFixture[str]) -> None:
        self.loop, self._capfd = loop, capfd
        self.remarks = ""

    def run(self, *words: str) -> tuple[int, str]:
        self._capfd.readouterr()
        code = main(["--conf-dir", str(self.loop.config.file.parent), "tail", "shop", *words])
        out, self.remarks = self._capfd.readouterr()
        return code, out

    def lines(self, *words: str) -> list[dict[str, Any]]:
        code, text = self.run("--json", "--no-follow", "--from", "earliest", *words)
        assert code == 0, self.remarks
        return [json.loads(line) for line in text.splitlines()]

    def text(self, *words: str) -> str:
        code, text = self.run("--no-follow", "--from", "earliest", *words)
        assert code == 0, self.remarks
        return text


def short(changes: list[dict[str, Any]], db: str) -> list[tuple[Any, ...]]:
    return [
        (change["op"], (change["table"] or "").removeprefix(f"{db}."),
         *(tuple((change[which] or {}).values()) for which in ("before", "after")))
        for change in changes
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def test_changes_of_all_tables_come_in_their_order(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    server: Server = request.getfixturevalue(kind)
    loop = Loop(tmp_path, server, database(server))
    db = loop.db
    loop.sql("CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(200))", "CREATE TABLE b (x INT, y VARBINARY(90))")
    with server.connect() as connection, connection.cursor() as cursor:
        connection.autocommit(False)
        cursor.execute(f"USE {db}")
        for number in range(3):  # one transaction: its rows alternate between the tables
            cursor.execute("INSERT INTO a VALUES (%s, 'a'), (%s, 'ä\n')", (2 * number, 2 * number + 1))
            cursor.execute("INSERT INTO b VALUES (%s, x'00ff')", (number,))
        connection.commit()
    loop.sql(
        "UPDATE a SET v = 'A', id = 10 WHERE id = 0",
        "ALTER TABLE a ADD COLUMN w INT DEFAULT 5",
        "UPDATE a SET w = NULL WHERE id = 1",
        "DELETE FROM b WHERE x = 1",
        "UPDATE a SET v = REPEAT('long', 40) WHERE id = 2",
    )
    loop.capture()
    asked = Asked(loop, capfd)
    changes = asked.lines()
    order = [(change["seq"], change["pos"]) for change in changes]
    assert order == sorted(order)
    assert all(list(change)[: len(KEYS)] == KEYS for change in changes)
    rows = short([change for change in changes if change["op"] != "ddl"], db)
    inserts = [
        change
        for n in range(3)
        for change in (
            ("insert", "a", (), (2 * n, "a")),
            ("insert", "a", (), (2 * n + 1, "ä\n")),
            ("insert", "b", (), (n, "00ff")),
        )
    ]
    assert rows == [
        *inserts,
        ("update", "a", (0, "a"), (10, "A")),
        ("update", "a", (1, "ä\n", 5), (1, "ä\n", None)),
        ("delete", "b", (1, "00ff"), ()),
        ("update", "a", (2, "a", 5), (2, "long" * 40, 5)),
    ]
    ddl = [change for change in changes if change["op"] == "ddl"]
    assert [(change["table"], change["sql"].split()[0]) for change in ddl] == [
        (f"{db}.a", "CREATE"), (f"{db}.b", "CREATE"), (f"{db}.a", "ALTER")
    ]  # fmt: skip
    assert changes.index(ddl[2]) == 3 + 9
    # The same keys and values as cdc history.
    capfd.readouterr()
    assert main(["--conf-dir", str(loop.config.file.parent), "history", "--json", "shop", f"{db}.a", "2"]) == 0
    history = json.loads(capfd.readouterr().out)
    mine = asked.lines("--table", f"{db}.a", "--key", "2")
    assert [_change(shown) for shown in mine if shown["op"] != "ddl"] == [_change(change) for change in history]

    text = asked.text()
    assert "\033" not in text
    lines = text.splitlines()
    assert sum(line.startswith("-- ") for line in lines) == len({change["seq"] for change in changes})
    assert re.search(rf"insert  {db}\.a id=1  v: ä\\n$", text, re.MULTILINE)
    assert re.search(rf"update  {db}\.a id=10  id: 0 → 10  v: a → A$", text, re.MULTILINE)
    assert re.search(rf"update  {db}\.a id=1  w: 5 → NULL$", text, re.MULTILINE)
    assert re.search(rf"delete  {db}\.b  x: 1  y: 0x00ff$", text, re.MULTILINE)
    assert re.search(r"ddl     ALTER TABLE a ADD COLUMN w INT DEFAULT 5$", text, re.MULTILINE)
    assert max(map(len, lines)) < 200 and "longlon…" in text

    assert [row[:2] for row in short(asked.lines("--op", "delete", "--op", "ddl", "--table", f"{db}.b"), db)] == [
        ("ddl", "b"), ("delete", "b")
    ]  # fmt: skip
    assert asked.run("--from", str(changes[-1]["seq"]), "--no-follow") == (0, "")
    gtid = changes[-2]["gtid"]
    code, out = asked.run("--from", gtid, "--no-follow", "--json")
    assert code == 0 and [json.loads(line)["seq"] for line in out.splitlines()] == [changes[-1]["seq"]]
    time.sleep(1.1)  # MariaDB's commit times are whole seconds
    loop.sql("DELETE FROM a", "DELETE FROM b WHERE x = 0")
    loop.capture()
    later = asked.lines()[len(changes) :]
    code, out = asked.run("--from", later[-1]["commit_time"], "--no-follow", "--json")
    assert code == 0, asked.remarks
    assert json.loads(out.splitlines()[-1]) == later[-1] and changes[-1] not in map(json.loads, out.splitlines())


def test_policies_hide_values_unless_they_are_asked_for(
    mysql9: Server,
    tmp_path: Path,
    database: Database,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HASH_KEY", "secret of the test")
    policies = "{email: hash, card: {mask: 2}, note: drop, pin: null, name: {rename: title}}"
    loop = Loop(
        tmp_path, mysql9, database(mysql9), overrides=f"DB.t: {{columns: {policies}}}", apply="hash_key_env: HASH_KEY"
    )
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(50), card VARCHAR(9), note TEXT, pin INT, name VARCHAR(9))",
        "INSERT INTO t VALUES (1, 'eve@example', '123456', 'diary', 1904711904, 'Eve')",
        "UPDATE t SET note = 'blank', pin = 1904711905",
    )
    loop.capture()
    asked = Asked(loop, capfd)
    for text in (
        asked.text(),
        json.dumps(asked.lines()),
        json.dumps(asked.lines("--key", "1", "--table", f"{loop.db}.t")),
    ):
        assert not [word for word in ("eve@", "123456", "diary", "blank", "190471190") if word in text]
        assert "****56" in text and "title" in text and "Eve" in text
    assert "(no shown column changed)" in asked.text()
    (_, insert, _) = asked.lines("--source-values")
    assert insert["after"] == {
        "id": 1, "email": "eve@example", "card": "123456", "note": "diary", "pin": 1904711904, "name": "Eve"
    }  # fmt: skip
    assert "note: diary → blank  pin: 1904711904 → 1904711905" in asked.text("--source-values")
    # cdc history treats them alike.
    conf = ["--conf-dir", str(loop.config.file.parent), "history", "--json", "shop", f"{loop.db}.t", "1"]
    for words in ([], ["--source-values"]):
        capfd.readouterr()
        assert main([*conf, *words]) == 0
        history = json.loads(capfd.readouterr().out)
        mine = asked.lines("--op", "insert", "--op", "update", *words)
        assert [_change(shown) for shown in mine] == [_change(change) for change in history]
    monkeypatch.delenv("HASH_KEY")
    code, _ = asked.run("--no-follow", "--from", "earliest")
    assert code == 2 and "HASH_KEY" in asked.remarks


def test_bad_input_ends_with_one_sentence(
    mysql9: Server, tmp_path: Path, database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    asked = Asked(loop, capfd)

    def refused(*words: str) -> str:
        code, text = asked.run(*words)
        assert (code, text) == (2, ""), words
        return asked.remarks

    assert "there is no store yet" in refused()
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    loop.capture()
    assert "without --from that is where it begins" in refused("--no-follow")
    assert "is not captured" in refused("--table", "other.t")
    assert "'t' is not the name of a table" in refused("--table", "t")
    assert "--key names rows of one table" in refused("--key", "1")
    assert "the store does not know its columns" in refused("--table", f"{loop.db}.new", "--key", "1")
    assert "is no value of the column's type" in refused(
        "--table", f"{loop.db}.t", "--key", "x", "--op", "insert", "--from", "earliest", "--no-follow"
    )
    assert "neither a seq, nor a time, nor a GTID set" in refused("--from", "yesterday")
    assert "lies behind the store's last transaction" in refused("--from", str(1 << 60))
    last = StoreReader(loop.config.store.path).last_seq()
    assert last is not None
    with removal_lock(loop.config.store.path):
        write_removed(loop.config.store.path, Removed(last, 0, ()))
    assert asked.run("--from", "earliest", "--no-follow") == (0, "")
    assert "were removed by retention before they were shown" in refused("--from", "0", "--no-follow")


# --- following


@contextmanager
def capturing(loop: Loop) -> Iterator[subprocess.Popen[bytes]]:
    with open(loop.config.file.parent / "capture.log", "ab") as log:
        process = subprocess.Popen(command(loop, "capture", "shop"), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


class Following:
    """A running ``cdc tail`` whose output is read as it comes."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process, self.fd = process, fd
        self.seen = b""

    def wait_for(self, what: bytes, timeout_s: float = 60) -> float:
        """Reads until a text has come. Returns how long that took."""
        began = time.monotonic()
        while what not in self.seen:
            left_s = began + timeout_s - time.monotonic()
            assert left_s > 0, self.seen[-2000:]
            if select.select([self.fd], [], [], left_s)[0]:
                part = os.read(self.fd, 1 << 20)
                assert part, self.seen[-2000:]
                self.seen += part
        return time.monotonic() - began


@contextmanager
def following(loop: Loop, *words: str) -> Iterator[Following]:
    with open(loop.config.file.parent / "tail.log", "wb") as log:
        process = subprocess.Popen(command(loop, "tail", "shop", *words), stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        yield Following(process, process.stdout.fileno())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def log_of(loop: Loop) -> str:
    return (loop.config.file.parent / "tail.log").read_text()


def test_it_follows_the_store_soon_and_idly_and_ends_cleanly(
    mysql9: Server, tmp_path: Path, database: Database
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    loop.capture()
    late = f"{loop.db}.late"
    with following(loop, "--table", f"{loop.db}.t", "--table", late) as tail:
        _wait(lambda: "capture is not running" in log_of(loop))
        assert f"there is no table {late} yet" in log_of(loop)
        with capturing(loop):
            loop.sql("INSERT INTO t VALUES (2, 2)")
            tail.wait_for(b"id=2 ")
            delays = []
            for number in range(3, 13):
                began = time.monotonic()
                loop.sql(f"INSERT INTO t VALUES ({number}, 0)")
                tail.wait_for(b"id=%d " % number)
                delays.append(time.monotonic() - began)
            print("seconds from the statement to the line:", [round(delay, 3) for delay in delays])
            assert min(delays) < 1, delays
            loop.sql("CREATE TABLE late (id INT PRIMARY KEY)", "INSERT INTO late VALUES (99)")
            tail.wait_for(late.encode() + b" id=99")
            watched = psutil.Process(tail.process.pid)
            before = sum(watched.cpu_times()[:2])
            time.sleep(2)
            used = sum(watched.cpu_times()[:2]) - before
            assert used <= 0.5, f"{used} s of CPU in 2 idle seconds"
        assert b"id=1 " not in tail.seen  # it was there before
        tail.process.send_signal(signal.SIGINT)
        assert tail.process.wait(60) == 0
    assert "Traceback" not in log_of(loop)


def _wait(check: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
def test_a_closed_pipe_ends_it_even_if_nothing_comes(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    loop.capture()
    with following(loop, "--from", "earliest") as tail:
        tail.wait_for(b"id=1 ")
        assert tail.process.stdout is not None
        os.dup2(os.open(os.devnull, os.O_RDONLY), tail.fd)  # the pipe's only reading end goes
        assert tail.process.wait(60) == 0
    assert "Traceback" not in log_of(loop)


@pytest.mark.long
def test_a_huge_transaction_is_interrupted_at_once_and_takes_little_memory(
    mysql9: Server, tmp_path: Path, database: Database
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(
        "SET SESSION cte_max_recursion_depth = 2000",
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(60), n INT)",
        "INSERT INTO t (v, n) WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 1000) "
        "SELECT uuid(), a.i FROM c a JOIN (SELECT i FROM c LIMIT 300) b",
    )
    loop.capture()
    with following(loop, "--from", "earliest") as tail:
        tail.wait_for(b"id=2000 ")
        tail.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        while os.read(tail.fd, 1 << 20):
            pass
        assert tail.process.wait(5) == 0
        assert time.monotonic() - began < 2
    began = time.monotonic()
    with open(tmp_path / "out", "wb") as out:
        process = subprocess.Popen(
            command(loop, "tail", "shop", "--from", "earliest", "--no-follow", "--json"), stdout=out
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, psutil.Process(process.pid).memory_info().rss)
            time.sleep(0.02)
    lines = (tmp_path / "out").read_bytes().splitlines()
    assert process.returncode == 0 and len(lines) == 300_001
    print(f"{time.monotonic() - began:.1f} s, peak {peak >> 20} MiB")
    assert peak < 700 << 20


@contextmanager
def on_a_terminal(loop: Loop, *words: str, **env: str) -> Iterator[Following]:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command(loop, "tail", "shop", *words),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", **env},
        start_new_session=True,
    )
    os.close(follower)
    try:
        yield Following(process, leader)
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def test_a_terminal_gets_colours_unless_it_wants_none(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO t VALUES (1, CONCAT(CHAR(27), '[31mred'))",
        "UPDATE t SET v = 'blue'",
    )
    loop.capture()
    with on_a_terminal(loop, "--from", "earliest") as tail:
        tail.wait_for(b"blue")
        assert b"\033[32minsert\033[0m" in tail.seen and b"\033[33mupdate\033[0m" in tail.seen
        assert b"\\x1b[31mred" in tail.seen and b"\033[31mred" not in tail.seen
        os.write(tail.fd, b"\x03") if os.isatty(tail.fd) else None
        tail.process.send_signal(signal.SIGINT)
        assert tail.process.wait(60) == 0
    with on_a_terminal(loop, "--from", "earliest", NO_COLOR="1") as tail:
        tail.wait_for(b"blue")
        assert b"\033[3" not in tail.seen and b"\033[2m" not in tail.seen


@pytest.mark.long
def test_a_store_that_is_cleaned_under_it(mysql9: Server, tmp_path: Path, database: Database) -> None:
    """The reader stands still, as a terminal does after Ctrl-S; meanwhile retention removes what it has not seen."""
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    loop.capture()
    store = loop.config.store.path
    with following(loop, "--from", "earliest") as tail:
        tail.wait_for(b"id=1 ")
        tail.process.send_signal(signal.SIGSTOP)
        loop.sql("INSERT INTO t VALUES (2, 2)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 3)")
        loop.capture()
        names = sorted(path.name for path in (store / "segments").glob("*.binlog"))
        assert len(names) > 1
        entries = StoreReader(store).all_entries()
        removed = max(int(seq) for part in entries for seq in part["seq"] if int(seq) >> 34 < _file_of(names[-1]))
        with removal_lock(store):
            write_removed(store, Removed(removed, 0, tuple(names[:-1])))
            finish_removal(store)
        tail.process.send_signal(signal.SIGCONT)
        assert tail.process.wait(30) == 2
    assert "were removed by retention before they were shown" in log_of(loop)


@pytest.mark.long
def test_a_store_at_a_server_is_shown_alike(
    mysql9: Server, tmp_path: Path, database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 1)",
        "INSERT INTO other VALUES (7)",
        "FLUSH BINARY LOGS",
        "ALTER TABLE t ADD COLUMN w INT",
        "UPDATE t SET w = 5",
    )
    loop.capture()
    asked = Asked(loop, capfd)
    local = asked.lines(), asked.lines("--table", f"{loop.db}.t"), asked.text()
    served = with_tokens(loop.config)
    with server_process(served, tmp_path) as server:
        loop.config = client_config(served, tmp_path / "client", server.url)
        assert (asked.lines(), asked.lines("--table", f"{loop.db}.t"), asked.text()) == local
        with following(loop) as tail:
            _wait(lambda: "capture is not running" in log_of(loop))
            server.stop(signal.SIGKILL)
            loop.sql("INSERT INTO t VALUES (2, 2, 2)")
            Capture(served).run(until_current=True)
            server.start()
            tail.wait_for(b"id=2 ")
            assert b"id=1 " not in tail.seen


def _file_of(segment: str) -> int:
    return int(segment.split("-")[1])


def _change(shown: dict[str, Any]) -> dict[str, Any]:
    """Returns what ``cdc tail`` and ``cdc history`` both show of a change: without its table, and without the run that
    brought it into the lake."""
    alone = ("table", "batch", "delta_version", "rebuild", "run", "run_url")
    return {key: value for key, value in shown.items() if key not in alone}

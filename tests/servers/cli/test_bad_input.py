"""Bad configuration, sources, positions and tokens: one message, the right exit code, and nothing lost.

After the input is corrected, the same folder goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql
import pytest
from pymysqlreplication import BinLogStreamReader

from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import HOST, PASSWORD, USER, Server, free_port
from tests.support.binlog_files import purge
from tests.support.servers_bad_input import Site, bundle, refused, rows, succeeded, url
from tests.support.versions import status_statement
from tests.support.xa import end, prepare

CAPTURE = ("capture", "shop", "--until-current")
DB = "bad"
ONE = pytest.mark.parametrize("server", ["mariadb10"], indirect=True, scope="module")
"""For cases that the preflight's own tests try on both kinds of servers."""


@pytest.fixture(scope="module", params=["mysql9", pytest.param("mariadb10", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of this module, since its settings are changed."""
    with Server(request.param) as server:
        server.execute(f"CREATE DATABASE {DB}", f"CREATE TABLE {DB}.t (id INT PRIMARY KEY, v VARCHAR(200))")
        yield server


@contextmanager
def setting(server: Server, name: str, value: str) -> Iterator[None]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{name}")
        row = cursor.fetchone()
        assert row is not None
        cursor.execute(f"SET GLOBAL {name} = {value}")
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL {name} = %s", (row[0],))


def begin_log(server: Server) -> str:
    """Begins a new binlog file and returns its name."""
    server.execute("FLUSH BINARY LOGS")
    statement = status_statement(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
        assert row is not None
        return str(row[0])


def events(server: Server, file: str) -> list[tuple[int, str]]:
    """Position and type of each event in a binlog file."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW BINLOG EVENTS IN '{file}'")
        return [(int(row[1]), str(row[2])) for row in cursor.fetchall()]


# ---------------------------------------------------------------- the configuration


CONFIGURATIONS = [
    ("an unknown key", "batches: {max_bytes: 5}\n", ("shop.yaml", "batches", "batch")),
    ("an unknown key below", "batch: {max_byte: 5}\n", ("shop.yaml", "batch.max_byte", "max_bytes")),
    ("a wrong value", "batch: {max_bytes: many}\n", ("shop.yaml", "batch.max_bytes", "many")),
    ("a value out of range", "batch: {lease_s: -4}\n", ("shop.yaml", "batch.lease_s", "-4")),
    ("a negative number", "airflow: {retries: -1}\n", ("shop.yaml", "airflow.retries", "-1")),
    ("no YAML", "batch: {max_bytes: [}\n", ("shop.yaml:7", "not valid YAML")),
    ("a variable that is not set", "batch: {max_bytes: '${NOT_SET_ANYWHERE}'}\n", ("shop.yaml", "NOT_SET_ANYWHERE")),
]


def test_configuration(tmp_path: Path) -> None:
    cases = []
    for number, (_, more, _) in enumerate(CONFIGURATIONS):
        site = Site(tmp_path / str(number))
        site.configure("mysql://t@127.0.0.1:1", DB, more=more)
        cases.append((site, CAPTURE))
    contradiction = Site(tmp_path / "contradiction")
    contradiction.configure("mysql://t@127.0.0.1:1", DB, meta="./data/store/meta")
    secret = Site(tmp_path / "secret")
    secret.configure("mysql://t:hush-hush@127.0.0.1:1", DB)
    done = bundle([*cases, (contradiction, CAPTURE), (secret, CAPTURE), (secret, ["capture", "absent"])])
    for (_, _, words), outcome in zip(CONFIGURATIONS, done, strict=False):
        refused(outcome, 2, *words)
    refused(done[-3], 2, "shop.yaml", "meta.path", "inside store.path", "Give each a folder of its own")
    assert "hush" not in refused(done[-2], 2, "shop.yaml", "source.url", "password_env")
    refused(done[-1], 2, str(tmp_path / "secret"), "'absent'", "Choose from: shop.")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".yaml"]


def test_wrong_usage_and_commands_to_come(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.configure("mysql://t@127.0.0.1:1", DB)
    done = site.bundle(
        ["snapshot", "shop", "bad.t"],
        ["replay", "shop", "bad.t", "--from", "1"],
        ["verify", "shop"],
        ["maintain", "shop"],
        ["capture", "shop", "--sideways"],
        ["apply", "shop", "--until", "tomorrow"],
        ["decode", str(tmp_path / "absent"), "--table", "bad.t"],
        ["inspect", str(tmp_path)],
        ["batch", "ack", "shop", "--batch", "1", "--token", "x"],
    )
    words = [
        ("nothing was captured yet", "Start `cdc capture shop` first"),
        ("nothing was applied yet", "cdc apply shop"),
        ("nothing was captured yet", "cdc capture"),
        ("there is no store yet", "cdc capture"),
        ("--sideways", "cdc capture --help"),
        ("'tomorrow'", "2026-"),
        ("absent", "does not exist"),
        (str(tmp_path), "is a folder"),
        ("no subscriber 'apply'", "cdc batch get"),
    ]
    for outcome, expected in zip(done, words, strict=True):
        refused(outcome, 2, *expected)


# ---------------------------------------------------------------- the source


@ONE
def test_settings_of_the_source(server: Server, tmp_path: Path) -> None:
    """Capture is refused while a setting is wrong, and runs once it is right."""
    site = Site(tmp_path)
    site.configure(server.url, DB, start="now")
    for name, wrong in (
        ("binlog_format", "STATEMENT"),
        ("binlog_row_image", "MINIMAL"),
    ):
        with setting(server, name, f"'{wrong}'"):
            done = site.run(*CAPTURE)
        refused(done, 2, f"{name} is {wrong}", f"SET GLOBAL {name}=")
        assert list(site.files()) == ["conf/shop.yaml"]
    succeeded(site.run(*CAPTURE))


def test_server_without_binlog(tmp_path: Path) -> None:
    with Server("mariadb10", options=["--skip-log-bin"]) as server:
        site = Site(tmp_path)
        site.configure(server.url, DB)
        refused(site.run(*CAPTURE), 2, "log_bin is OFF", "Start it with log_bin")
        assert list(site.files()) == ["conf/shop.yaml"]


@ONE
def test_users_and_addresses(server: Server, tmp_path: Path) -> None:
    """Nothing is created before the source answers; then the same folder works."""
    server.execute(
        "CREATE USER slave@'127.0.0.1' IDENTIFIED BY 'pw'", "CREATE USER client@'127.0.0.1' IDENTIFIED BY 'pw'"
    )
    server.execute(
        "GRANT SELECT, REPLICATION SLAVE ON *.* TO slave@'127.0.0.1'",
        "GRANT SELECT, REPLICATION CLIENT ON *.* TO client@'127.0.0.1'",
    )
    site, free = Site(tmp_path), free_port()
    urls = {
        "host": server.url.replace(HOST, "no-such-host.invalid"),
        "port": server.url.replace(f":{server.port}", f":{free}"),
        "slave": url(server, "slave"),
        "client": url(server, "client"),
        "shop": server.url,
    }
    for name, where in urls.items():
        site.configure(where, DB, name=name, start="now")
    try:
        done = site.bundle(*[["capture", name, "--until-current"] for name in urls if name != "shop"])
        refused(done[0], 1, "no-such-host.invalid", "not known", "Check the host")
        refused(done[1], 1, f"{HOST}:{free}", "connection refused", "Check host and port")
        refused(done[2], 2, "'slave'@'127.0.0.1'", "may not ask for the current position", "GRANT BINLOG MONITOR")
        refused(done[3], 2, "'client'@'127.0.0.1'", "REPLICATION SLAVE is missing", "GRANT REPLICATION SLAVE")
        message = refused(site.run(*CAPTURE, password="wröng-one"), 2, "refuses user 't'", "password_env")
        assert "wröng" not in message
        assert {path.split("/")[0] for path in site.files()} == {"conf"}
        succeeded(site.run(*CAPTURE))
    finally:
        server.execute("DROP USER slave@'127.0.0.1'", "DROP USER client@'127.0.0.1'")


@pytest.mark.rule("canal-server-2", "canal-server-3", "canal-server-4")
def test_start_positions(server: Server, tmp_path: Path) -> None:
    """A position that does not exist, or where nothing begins, is not kept: with a right one the same folder works."""
    file = begin_log(server)
    server.execute(f"DELETE FROM {DB}.t", f"INSERT INTO {DB}.t VALUES (1, 'a')", f"INSERT INTO {DB}.t VALUES (2, 'b')")
    binlog_events = events(server, file)
    begins = [pos for pos, kind in binlog_events if kind.lower() == "gtid"][-2]
    row_event = next(pos for pos, kind in binlog_events if "rite_rows" in kind and pos > begins)
    gtid = "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002:1-3" if server.kind.name == "mysql9" else "0-1-3"
    number = int(file.split(".")[1])
    cases = [
        (f"{{gtid: '{gtid}'}}", ("source.start.gtid", "Check that source.url names the server")),
        (f"{{file: binlog.{number + 90:06d}, pos: 4}}", (f"binlog.{number + 90:06d}", file, "Write a position")),
        ("{file: other.000001, pos: 4}", ("other.000001", file, "Write a position")),
        (f"{{file: {file}, pos: 99999999}}", (f"{file}:99999999", "bytes", "Write a position")),
        (f"{{file: {file}, pos: {begins + 7}}}", (str(begins + 7),)),
        (f"{{file: {file}, pos: {row_event}}}", ("no transaction begins at source.start", "Write a position")),
    ]
    site = Site(tmp_path)
    site.configure(server.url, DB, start=f"{{file: {file}, pos: {begins}}}")
    commands: list[tuple[Site, tuple[str, ...]]] = []
    for number, (start, _) in enumerate(cases):  # other configurations of the same store and meta
        wrong = Site(tmp_path / str(number))
        wrong.configure(server.url, DB, start=start, store=str(site.store), meta=str(site.meta))
        commands.append((wrong, CAPTURE))
    decode = ("decode", str(site.store), "--table", f"{DB}.t", "--column", "id")
    *done, captured, decoded = bundle([*commands, (site, CAPTURE), (site, decode)])
    for outcome, (_, words) in zip(done, cases, strict=True):
        refused(outcome, 2, *words)
    succeeded(captured)
    assert rows(decoded) == [1, 2]


def kept_files(site: Site) -> dict[str, str]:
    """The files without those that hold the time of the last writer."""
    return {
        name: digest for name, digest in site.files().items() if Path(name).name not in ("capture.json", "checkpoint")
    }


@ONE
def test_purged_while_capture_was_away(server: Server, tmp_path: Path) -> None:
    site = Site(tmp_path)
    begin_log(server)
    site.configure(server.url, DB, start="now")
    server.execute(f"REPLACE INTO {DB}.t VALUES (1, 'kept')")
    succeeded(site.run(*CAPTURE))
    begin_log(server)
    begin_log(server)
    last = purge(server)
    before = kept_files(site)
    refused(site.run(*CAPTURE), 2, "no longer has binlog.", last, "new destination", "binlog_expire_logs_seconds")
    assert kept_files(site) == before


def test_another_server(mysql9: Server, mariadb10: Server, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.configure(mysql9.url, DB, start="now")
    succeeded(site.run(*CAPTURE))
    before = site.files()
    site.configure(mariadb10.url, DB, start="now")
    refused(site.run(*CAPTURE), 2, "meta.json", "UUID", "new destination")
    site.configure(mysql9.url, DB, start="now")
    assert {k: v for k, v in site.files().items() if "segments" in k} == {
        k: v for k, v in before.items() if "segments" in k
    }
    succeeded(site.run(*CAPTURE))


def test_two_captures_with_one_server_id(server: Server, tmp_path: Path) -> None:
    """A second capture is refused before it disturbs the first. If another program's replica takes the connection away,
    capture stops with a message instead of fighting for it."""
    first, second = Site(tmp_path / "first"), Site(tmp_path / "second")
    for site in (first, second):
        site.configure(server.url, DB, start="now", server_id=4_000_000_017)
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(first.folder / "conf"), "capture", "shop"]
    running = subprocess.Popen(
        command, env=first.environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    intruder: BinLogStreamReader | None = None
    try:
        wait_for_capture(first)
        refused(second.run(*CAPTURE), 2, "server_id", "4000000017", "Set source.server_id to a number")
        assert running.poll() is None
        settings = {"host": HOST, "port": server.port, "user": USER, "password": PASSWORD}
        intruder = BinLogStreamReader(settings, server_id=4_000_000_017, blocking=True, resume_stream=False)
        threading.Thread(target=read_on, args=(intruder,), daemon=True).start()
        _, err = running.communicate(timeout=30)
    finally:
        running.kill()
        if intruder is not None and intruder._stream_connection is not None:
            intruder._stream_connection._force_close()
    assert running.returncode == 2, err
    assert "another replica uses source.server_id 4000000017" in err and "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("cdc: source ")


def read_on(intruder: BinLogStreamReader) -> None:
    """Reads until an event comes, or until the connection is closed meanwhile, which PyMySQL tells in several ways."""
    with suppress(AttributeError, OSError, pymysql.err.Error):
        next(iter(intruder), None)


def wait_for_capture(site: Site) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (site.store / "capture.json").exists():
            state = StoreReader(site.store).capture_state()
            if state is not None and state.connected and state.complete_until_us:
                return
        time.sleep(0.1)
    raise AssertionError("capture did not connect")


def test_unsupported_transactions(server: Server, tmp_path: Path) -> None:
    """Statements instead of rows, and an XA COMMIT of purged rows: the transactions before them are kept."""
    file = begin_log(server)
    server.execute(f"DELETE FROM {DB}.t", f"INSERT INTO {DB}.t VALUES (1, 'before')")
    server.execute("SET SESSION binlog_format = STATEMENT", f"INSERT INTO {DB}.t VALUES (9, 'text')")
    text, purged = Site(tmp_path / "text"), Site(tmp_path / "purged")
    text.configure(server.url, DB, start=f"{{file: {file}, pos: 4}}")
    show = ("decode", str(text.store), "--table", f"{DB}.t", "--column", "id")
    once, twice, decoded = text.bundle(CAPTURE, CAPTURE, show)
    for outcome in (once, twice):
        refused(outcome, 2, file, f"INSERT INTO {DB}.t", "binlog_format=ROW")
    assert rows(decoded)[-1] == 1
    prepare(server, "'x'", f"INSERT INTO {DB}.t VALUES (2, 'x')")
    begin_log(server)
    file = purge(server)
    end(server, "'x'")
    purged.configure(server.url, DB, start=f"{{file: {file}, pos: 4}}")
    [done] = purged.bundle(CAPTURE)
    refused(done, 2, file, "x'78',x'',1 is committed here", "source.ignore_xa")


# ---------------------------------------------------------------- the batch protocol


def test_tokens_and_order(mariadb10: Server, database: object, tmp_path: Path) -> None:
    assert callable(database)
    db = str(database(mariadb10))
    site = Site(tmp_path)
    site.configure(mariadb10.url, db, start="now", more="batch: {max_transactions: 1}\n")
    succeeded(site.run(*CAPTURE))
    mariadb10.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY)", *[f"INSERT INTO {db}.t VALUES ({n})" for n in range(3)]
    )
    get = ("batch", "get", "shop", "--json")
    _, first_get, next_get, repeated_get, brief = site.bundle(
        CAPTURE,
        get,
        [*get, "--ahead"],
        get,
        [*get, "--ahead", "--subscriber", "other", "--owner", "me", "--lease", "0.01"],
    )
    first, second, third, other = (json.loads(done.out) for done in (first_get, next_get, repeated_get, brief))
    assert first["batch"] == third["batch"] and first["token"] != third["token"]

    def ack(batch: dict[str, object], token: object, verb: str = "ack", subscriber: str = "apply") -> list[str]:
        return [
            "batch",
            verb,
            "shop",
            "--batch",
            str(batch["batch"]),
            "--token",
            str(token),
            "--subscriber",
            subscriber,
        ]

    before = site.files()
    done = site.bundle(
        ack(first, "0123456789abcdef"),
        ack(first, first["token"]),
        ack(first, first["token"], "rollback"),
        ack(second, second["token"]),
        ack(other, other["token"], subscriber="other"),
        ack({"batch": 77}, "x"),
        [*get, "--owner", "somebody else"],
    )
    refused(done[0], 2, "batch 1 is wrong", "Get the batch again")
    refused(done[1], 2, "was replaced", "Get the batch again")
    refused(done[2], 2, "was replaced")
    refused(done[3], 2, "2", "1")
    refused(done[4], 2, "expired at", "Get the batch again")
    refused(done[5], 2, "77")
    refused(done[6], 1, "cli:", "until")
    assert site.files() == before
    for outcome in site.bundle(ack(first, third["token"]), ack(first, third["token"]), ack(second, second["token"])):
        succeeded(outcome)

"""The archive of a store in S3 with a real server and real processes: a lost host is rebuilt and its tables are equal to the
source, captures are killed while they copy, the object store goes away, old changes are read from the archive."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import cdc
from cdc.base.errors import ConfigError, CutOffError, IdentityError
from cdc.cli import check_local
from cdc.cli.main import main
from cdc.config import load
from cdc.copies.archive.states import Archive
from cdc.copies.archive.verify import verify
from cdc.copies.archive.writer import Archiver
from cdc.lake import pipeline
from cdc.lake.runtime import session
from cdc.store.formats.archive_record import read_record
from cdc.store.formats.layout import list_segments
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import remove_until
from cdc.testing.servers import Server
from cdc.watch.status import collect
from tests.support.apply import Loop
from tests.support.s3 import KEY, SECRET, S3Server, serve

Database = Callable[[Server], str]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_TEST_S3", SECRET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serve("archives") as server:
        yield server


def made(folder: Path, source: Server, db: str, s3: S3Server, **store: Any) -> Loop:
    """A destination whose store has small segments, and an archive of its own in the bucket."""
    loop = Loop(folder, source, db, overrides="DB.log: {mode: append}")
    document = yaml.safe_load(loop.config.file.read_text())
    document["s3"] = {"endpoint": s3.endpoint, "access_key_id": KEY, "secret_access_key_env": "TOWPATH_TEST_S3"}
    archive = {"url": f"s3://archives/{db}", "meta_every": "1s"}
    document["store"] |= {"segment_bytes": 65536, "archive": archive, **store}
    loop.config.file.write_text(yaml.safe_dump(document))
    loop.config = load(loop.config.file)
    return loop


def make_tables(loop: Loop) -> None:
    loop.sql(
        "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(2000))",
        "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))",
    )


def change(loop: Loop, first: int, last: int, *, size: int = 1500) -> None:
    """Changes both tables, in two transactions for each number."""
    statements = []
    for n in range(first, last):
        text = f"REPEAT('{(n + last) % 10}', {size})"
        statements.append(f"INSERT INTO mirror VALUES ({n}, {text}) AS new ON DUPLICATE KEY UPDATE v = new.v")
        statements.append(f"INSERT IGNORE INTO log VALUES ({n}, 'v{n}')")
    loop.sql(*statements)


def require_equal(loop: Loop) -> None:
    loop.require_equal("mirror")
    ids = [row["id"] for row in loop.select("log")]
    assert loop.changelog("log") == [("insert", n) for n in ids]
    report = pipeline.verify(loop.config)
    assert report.exit_code == 0, report


def lose(loop: Loop) -> None:
    """Removes store and meta of the host; the lake stays."""
    shutil.rmtree(loop.config.store.path)
    shutil.rmtree(loop.config.meta.path)


def start_capture(loop: Loop) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "cdc", "--conf-dir", str(loop.config.file.parent), "capture", "shop"]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.05)


def archived_until(loop: Loop) -> int:
    return read_record(loop.config.store.path).archived_seq


@pytest.mark.long
def test_a_lost_host_is_rebuilt(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Store and meta are lost while the lake is ahead of the archive. Capture and apply go on behind it."""
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    assert [f.level for f in check_local.examine(loop.config) if f.subject == "archive"] == ["ok"]
    make_tables(loop)
    change(loop, 0, 120)
    loop.capture()
    loop.apply_all(transactions=100)
    assert main(["--conf-dir", str(loop.config.file.parent), "archive", "upload", "shop"]) == 0
    change(loop, 100, 150)
    loop.capture()
    loop.apply_all(transactions=60)  # the lake goes on, the archive does not
    assert len(list_segments(loop.config.store.path)) >= 3
    lake = loop.version("mirror")
    lose(loop)

    assert main(["--conf-dir", str(loop.config.file.parent), "archive", "restore", "shop", "--json"]) == 0
    said = capsys.readouterr()
    done = json.loads(said.out[said.out.index("{") :])
    assert done["meta"] == "restored" and done["segments"] >= 2
    loop.capture()
    loop.apply_all()
    assert loop.version("mirror") == lake  # it had everything
    change(loop, 140, 160)
    loop.capture()
    loop.apply_all()
    require_equal(loop)
    status = collect(loop.config)["archive"]
    assert status["error"] is None and status["segments"] >= 2
    assert main(["--conf-dir", str(loop.config.file.parent), "archive", "upload", "shop"]) == 0
    assert main(["--conf-dir", str(loop.config.file.parent), "archive", "verify", "shop"]) == 0
    assert main(["--conf-dir", str(loop.config.file.parent), "archive", "show", "shop"]) == 0
    assert main(["--conf-dir", str(loop.config.file.parent), "status", "shop"]) == 0
    said = capsys.readouterr()
    assert "written by the store of" in said.out and "Archive s3://archives/" in said.out
    assert SECRET not in said.out + said.err
    objects = s3.filesystem().find(f"archives/{loop.db}")
    assert not any(SECRET.encode() in s3.filesystem().cat_file(key) for key in objects)


@pytest.mark.long
def test_old_changes_are_read_from_the_archive(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server
) -> None:
    """Retention has removed the first transactions: a replay, the changes of a range, and the tables as of a transaction
    still have them."""
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    make_tables(loop)
    change(loop, 0, 60)
    loop.capture()
    early = StoreReader(loop.config.store.path).last_seq()
    assert early is not None
    change(loop, 50, 130)
    loop.sql("FLUSH BINARY LOGS")
    change(loop, 130, 140)
    loop.capture()
    loop.apply_all()
    Archiver(loop.config).run(everything=True)
    every = {path.name for path in list_segments(loop.config.store.path)}
    remove_until(loop.config.store.path, StoreReader(loop.config.store.path).last_seq() or 0)
    assert len(list_segments(loop.config.store.path)) == 1 < len(every) - 2
    with pytest.raises(CutOffError):
        StoreReader(loop.config.store.path).require_kept(0)

    table = f"{loop.db}.mirror"
    done = pipeline.replay(loop.config, [table, f"{loop.db}.log"])
    assert done[0].rows >= 140
    require_equal(loop)
    assert list((loop.config.store.path / "archived").glob("*/*.binlog")) == []  # released with their batches
    spark = session.acquire(loop.config.spark).spark
    changes = cdc.read_changes(spark, loop.config, f"{loop.db}.log", after_seq=0, last_seq=early)
    assert sorted(row["id"] for row in changes.collect()) == list(range(60))
    as_of = cdc.read_as_of(spark, loop.config, seq=early, tables=[f"{loop.db}.log"])
    assert sorted(row["id"] for row in as_of[f"{loop.db}.log"].collect()) == list(range(60))

    out = tmp_path / "fetched"
    command = ["--conf-dir", str(loop.config.file.parent), "archive", "fetch", "shop", "--out", str(out)]
    assert main([*command, "--to", str(early)]) == 0
    assert main(["inspect", str(out)]) == 0
    assert main(["decode", str(out), "--table", f"{loop.db}.log", "--out", str(tmp_path / "log.parquet")]) == 0


@pytest.mark.long
def test_a_capture_that_is_killed_while_it_copies(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server
) -> None:
    """A kill before a request that changes the archive; the next process brings it level."""
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    make_tables(loop)
    change(loop, 0, 90)
    loop.capture()
    kill_at_request(loop, s3, 4)
    newest = Archive(loop.config).newest()
    assert newest is None or verify(Archive(loop.config)).faults == []
    Archiver(loop.config).run(everything=True)
    require_whole_archive(loop)


def kill_at_request(loop: Loop, s3: S3Server, number: int) -> None:
    """Runs a capture in a process of its own and kills it when it sends its PUT or DELETE of this number, from 0, or
    when it has nothing more to send."""
    process = start_capture(loop)
    dead = threading.Event()
    seen: list[float] = []

    def look(request: str) -> None:
        if request.startswith(("PUT ", "DELETE ")) and f"/{loop.db}/" in request:
            seen.append(time.monotonic())
            if len(seen) > number and not dead.is_set():
                dead.set()
                os.kill(process.pid, signal.SIGKILL)

    s3.before = look
    try:
        wait_for(lambda: dead.is_set() or (seen and time.monotonic() - seen[-1] > 5), "the capture sends the request")
    finally:
        s3.before = None
        process.kill()
        process.communicate(timeout=60)


def require_whole_archive(loop: Loop) -> None:
    archive = Archive(loop.config)
    newest = archive.newest()
    assert newest is not None
    assert verify(archive).faults == []
    names = [path.name for path in list_segments(loop.config.store.path)]
    assert [segment.name for segment in newest.segments][-len(names) + 1 :] == names[:-1]
    assert not any(segment.gap for segment in newest.segments)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_object_store_that_goes_away(mysql9: Server, tmp_path: Path, database: Database, s3: S3Server) -> None:
    """Capture and apply go on, nothing is removed, and the archive is level soon after the object store is back."""
    loop = made(tmp_path, mysql9, database(mysql9), s3, retain={"acked_for": "1s"})
    make_tables(loop)
    loop.capture()
    process = start_capture(loop)
    try:
        change(loop, 0, 90)
        wait_for(lambda: archived_until(loop) > 0, "the first segment is archived")
        s3.fail = True
        change(loop, 90, 200)
        wait_for(lambda: read_record(loop.config.store.path).error != "", "the failure is recorded")
        before = archived_until(loop)
        wait_for(lambda: (StoreReader(loop.config.store.path).last_seq() or 0) > before, "capture goes on")
        loop.apply_all()
        status = collect(loop.config)["archive"]
        assert status["behind"]["segments"] > 0 and status["failing_since"] is not None
        assert [f.level for f in check_local.examine(loop.config) if f.subject == "archive"] == ["error"]
        removed = StoreReader(loop.config.store.path).removed_seq()
        assert removed <= before
        s3.fail = False
        wait_for(lambda: collect(loop.config)["archive"]["behind"]["segments"] == 0, "the archive is level", 120)
        wait_for(lambda: StoreReader(loop.config.store.path).removed_seq() > before, "retention goes on", 120)
    finally:
        s3.fail = False
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert "nothing is copied to the archive" in said and "written again" in said
    assert SECRET not in said
    loop.capture()
    loop.apply_all()
    lose(loop)
    assert main(["--conf-dir", str(loop.config.file.parent), "archive", "restore", "shop"]) == 0
    loop.capture()
    loop.apply_all()
    require_equal(loop)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_kills_before_every_request_and_a_lost_host(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server
) -> None:
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    make_tables(loop)
    change(loop, 0, 90)
    loop.capture()
    loop.apply_all(transactions=50)
    for number in range(14):
        change(loop, 90 + 40 * number, 130 + 40 * number)
        kill_at_request(loop, s3, number)
        newest = Archive(loop.config).newest()
        assert newest is None or verify(Archive(loop.config)).faults == []
        if number % 4 == 3:
            loop.capture()
            loop.apply_all(transactions=80)
    loop.capture()
    Archiver(loop.config).run(everything=True)
    require_whole_archive(loop)
    lose(loop)
    assert main(["--conf-dir", str(loop.config.file.parent), "archive", "restore", "shop"]) == 0
    loop.capture()
    loop.apply_all()
    require_equal(loop)


@pytest.mark.long
def test_two_hosts(mysql9: Server, tmp_path: Path, database: Database, s3: S3Server) -> None:
    """A host that was thought lost goes on: it is refused, and the archive is that of the new one."""
    db = database(mysql9)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old = made(tmp_path / "old", mysql9, db, s3)
    make_tables(old)
    change(old, 0, 90)
    old.capture()
    Archiver(old.config).run(everything=True)
    process = start_capture(old)
    try:
        wait_for(lambda: collect(old.config)["capture"]["connected"], "the old host captures")
        new = made(tmp_path / "new", mysql9, db, s3)
        assert main(["--conf-dir", str(new.config.file.parent), "archive", "restore", "shop"]) == 0
        change(new, 90, 200)
        new.capture()
        wait_for(lambda: "another store" in read_record(old.config.store.path).error, "the old host is refused")
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    with pytest.raises(IdentityError, match="another store writes to this archive"):
        Archiver(old.config).run()
    Archiver(new.config).run(everything=True)
    require_whole_archive(new)
    new.apply_all()
    require_equal(new)


def test_an_object_store_without_conditional_puts(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server
) -> None:
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    make_tables(loop)
    loop.capture()
    shutil.rmtree(loop.config.store.path)  # the capture has begun an archive
    s3.filesystem().rm(f"archives/{loop.db}", recursive=True)
    s3.ignores_conditions = True
    try:
        loop.capture()
        with pytest.raises(ConfigError, match="no conditional puts"):
            Archiver(loop.config).run()
        assert [f.level for f in check_local.examine(loop.config) if f.subject == "archive"] == ["error"]
    finally:
        s3.ignores_conditions = False

"""A real server of objects that fails: errors before and after the work is done, kills of the server and of drivers, two
drivers that commit at once. What was written is found at once, and each change is in the lake exactly once."""

from __future__ import annotations

import multiprocessing
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

from cdc.base.errors import CdcError, RetryableError
from cdc.config import load
from cdc.copies.archive.objects import RemoteObjects
from cdc.copies.archive.states import Archive
from cdc.copies.archive.verify import verify
from cdc.copies.archive.writer import Archiver
from cdc.lake import pipeline
from cdc.lake.delta import proof
from cdc.testing.servers import Server
from tests.support.apply import LOCAL, OWNER, Loop
from tests.support.compare import select_rows
from tests.support.s3 import KEY, SECRET, S3Server, serve

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
Database = Callable[[Server], str]
COMMIT = ".json"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serve("lake", kind="versitygw") as server:
        yield server


@pytest.fixture(autouse=True)
def _access(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("cdc.lake.delta.mirrors.cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(proof, "_looked_at", {})
    monkeypatch.setenv("TOWPATH_TEST_S3", SECRET)
    settings = {  # the stage has no access of its own
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield
    s3.faults = s3.before = None
    s3.fail = False


def made(folder: Path, source: Server, db: str, s3: S3Server, *, stage: bool = False) -> Loop:
    """A destination with a mirror and a changelog in the object store."""
    loop = Loop(
        folder,
        source,
        db,
        target=f"s3a://lake/{db}/tables",
        s3=f"{{endpoint: '{s3.endpoint}', access_key_id: {KEY}, secret_access_key_env: TOWPATH_TEST_S3}}",
        overrides="DB.log: {mode: append}",
        spark=LOCAL,
    )
    if stage:
        loop.edit("store: {", f"store: {{stage: 's3://lake/{db}/stage', ")
    loop.sql(
        "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))",
    )
    return loop


def change(loop: Loop, first: int, last: int) -> None:
    for n in range(first, last):
        loop.sql(f"INSERT INTO mirror VALUES ({n}, 'a')", f"INSERT INTO log VALUES ({n}, 'a')")
    loop.sql(f"UPDATE mirror SET v = 'b{last}'")
    loop.capture()


def require_exactly_once(loop: Loop, s3: S3Server, folder: Path) -> None:
    """Compares the lake with the source, by a copy of the bucket. A change that is twice in the changelog is found."""
    copy = folder / f"copy{random.SystemRandom().randrange(2**32)}"
    s3.download(f"{loop.db}/tables", copy)
    columns, rows = select_rows(loop.server, loop.db, "mirror")
    assert read(copy / loop.db / "mirror", columns) == sorted(rows)
    _, rows = select_rows(loop.server, loop.db, "log")
    assert read(copy / loop.db / "log", ["_op", "id"]) == sorted(("insert", row[0]) for row in rows)
    report = pipeline.verify(loop.config)
    assert report.exit_code == 0, report


def read(table: Path, columns: list[str]) -> list[tuple[Any, ...]]:
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=columns).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def until_done(step: Callable[[], object], limit: int = 8) -> int:
    """Repeats a step that an error of the object store may end, as a scheduler does. Returns the number of its errors."""
    for failures in range(limit):
        try:
            step()
            return failures
        except CdcError as error:
            if not isinstance(error, RetryableError):
                raise
    raise AssertionError(f"{limit} failures")


class Faults:
    """Answers a share of the requests with errors: before the work is done, or (a negative status) afterwards."""

    def __init__(self, seed: int, share: float, statuses: list[int], *, path_part: str = "") -> None:
        self._rng, self._share, self._statuses, self._of = random.Random(seed), share, statuses, path_part
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, request: str) -> int | None:
        with self._lock:
            if self._of not in request or self._rng.random() >= self._share:
                return None
            self.count += 1
            return self._rng.choice(self._statuses)


@pytest.mark.parametrize(
    ("share", "statuses"),
    [(0.1, [500, 503]), (0.1, [-500])],
    ids=["errors", "answers-are-lost"],
)
def test_a_part_of_the_requests_fails(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server, seed: int, share: float, statuses: list[int]
) -> None:
    loop = made(tmp_path, mysql9, database(mysql9), s3, stage=True)
    change(loop, 0, 5)
    s3.faults = faults = Faults(seed, share, statuses)
    until_done(loop.apply_all)
    change(loop, 5, 10)
    until_done(lambda: loop.apply_all(transactions=6))
    done = pipeline.maintain(loop.config, [], store_only=False, vacuum=True)
    assert {table["note"] for table in done["tables"]} == {None}
    s3.faults = None
    assert faults.count > 10
    require_exactly_once(loop, s3, tmp_path)
    assert s3.filesystem().find(f"lake/{loop.db}/stage") == []


def test_every_commit_is_answered_by_an_error(mysql9: Server, tmp_path: Path, database: Database, s3: S3Server) -> None:
    """The object is there, and its writer is told otherwise: it meets its own commit when it tries again."""
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    seen: set[str] = set()

    def first_time(request: str) -> int | None:
        is_commit = request.startswith("PUT ") and "/_delta_log/" in request and request.endswith(COMMIT)
        if not is_commit or request in seen:
            return None
        seen.add(request)
        return -500

    s3.faults = first_time
    for n in range(2):
        change(loop, n * 5, n * 5 + 5)
        loop.apply_all()
    s3.faults = None
    assert len(seen) >= 4
    require_exactly_once(loop, s3, tmp_path)


def test_a_conflict_of_two_puts_ends_the_run_and_not_the_table(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server
) -> None:
    """Amazon answers 409 to a conditional put while another one to the same name is under way."""
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    change(loop, 0, 5)
    loop.apply_all()
    change(loop, 5, 10)
    conflicts_left = [1]

    def conflict(request: str) -> int | None:
        is_commit = request.startswith("PUT ") and "/mirror/_delta_log/" in request and request.endswith(COMMIT)
        return 409 if is_commit and conflicts_left and conflicts_left.pop() else None

    s3.faults = conflict
    until_done(loop.apply_all)
    assert not conflicts_left
    require_exactly_once(loop, s3, tmp_path)


APPLY = """
import sys
from pathlib import Path
from cdc.batches.service import BatchService
from cdc.config import load
from cdc.lake import pipeline
config = load(Path(sys.argv[1]))
lease = BatchService(config).get(sys.argv[2], wait_s=0)
results = pipeline.merge(config, lease)
pipeline.finalize(config, lease, True, results)
"""


def start_driver(loop: Loop) -> subprocess.Popen[bytes]:
    """Starts a process that merges and acks the first batch."""
    with (loop.config.file.parent / "driver.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", APPLY, str(loop.config.file), OWNER], stdout=log, stderr=log)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a driver and its JVM."""
    everyone = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for driver_process in everyone:
        driver_process.kill()
    process.wait()
    psutil.wait_procs(everyone, 30)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_is_killed_at_its_commit(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server, moment: str
) -> None:
    """The commit of the changelog is not there, or it is and nobody knows."""
    loop = made(tmp_path, mysql9, database(mysql9), s3, stage=True)
    change(loop, 0, 5)
    loop.apply_all()
    change(loop, 5, 10)
    log = f"/lake/{loop.db}/tables/{loop.db}/log/_delta_log/"
    dead = threading.Event()
    process = start_driver(loop)

    def die(request: str) -> None:
        is_there = any(sent.startswith(f"PUT {log}") for sent in s3.requests)
        is_commit = request.startswith(f"PUT {log}") and request.endswith(COMMIT)
        if not dead.is_set() and (is_commit if moment == "before" else is_there):
            dead.set()
            kill(process)
            raise ConnectionResetError("its client is dead")

    s3.requests.clear()
    s3.before = die
    deadline = time.monotonic() + 300
    while not dead.is_set() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert dead.is_set(), (loop.config.file.parent / "driver.log").read_text()[-3000:]
    s3.before = None
    process.wait()
    change(loop, 10, 12)
    loop.apply_all()
    require_exactly_once(loop, s3, tmp_path)


def test_an_orphan_commits_beside_its_retry(mysql9: Server, tmp_path: Path, database: Database, s3: S3Server) -> None:
    """Two drivers have the same batch. The orphan's commit of the changelog is held until the other one has committed."""
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    change(loop, 0, 5)
    loop.apply_all()
    change(loop, 5, 10)
    log = f"/lake/{loop.db}/tables/{loop.db}/log/_delta_log/"
    held, go = threading.Event(), threading.Event()

    def hold(request: str) -> None:
        if request.startswith(f"PUT {log}") and request.endswith(COMMIT) and not held.is_set():
            held.set()
            assert go.wait(300)

    s3.before = hold
    orphan = start_driver(loop)
    try:
        assert held.wait(300), (loop.config.file.parent / "driver.log").read_text()[-3000:]
        s3.requests.clear()
        loop.apply_all()  # the same owner gets the same batch again
        go.set()
        orphan.wait(300)
    finally:
        s3.before = None
        go.set()
        orphan.kill()
    puts = [request for request in s3.requests if request.startswith(f"PUT {log}") and COMMIT in request]
    assert [request.split()[-1] for request in puts][:2] == ["200", "412"], puts
    require_exactly_once(loop, s3, tmp_path)


def test_the_server_is_killed_in_the_middle_of_a_batch(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server, seed: int
) -> None:
    """It comes back on its data after some seconds. What it had answered is there."""
    assert s3.process is not None
    server, rng = s3.process, random.Random(seed)
    loop = made(tmp_path, mysql9, database(mysql9), s3, stage=True)
    change(loop, 0, 5)
    loop.apply_all()
    for n in range(1, 3):
        change(loop, n * 5, n * 5 + 5)
        countdown = [rng.randrange(60)]
        away = threading.Lock()

        def crash(request: str, countdown: list[int] = countdown, away: threading.Lock = away) -> None:
            with away:
                countdown[0] -= 1
                if countdown[0] == -1:
                    server.kill()
                    threading.Timer(3, server.restart).start()

        s3.before = crash
        until_done(loop.apply_all)
        while not server.alive or not server.kind.answers(server.port):
            time.sleep(0.1)
        s3.before = None
    require_exactly_once(loop, s3, tmp_path)


def test_an_archive_is_whole_whatever_the_server_answers(
    mysql9: Server, tmp_path: Path, database: Database, s3: S3Server, seed: int
) -> None:
    loop = made(tmp_path, mysql9, database(mysql9), s3)
    text = loop.config.file.read_text()
    archive = f"archive: {{url: 's3://lake/{loop.db}/archive'}}, segment_bytes: 65536"
    loop.config.file.write_text(text.replace("store: {", f"store: {{{archive}, "))
    loop.config = load(loop.config.file)
    change(loop, 0, 200)
    s3.faults = faults = Faults(seed, 0.5, [500, 503, -500, -503], path_part=f"/{loop.db}/archive")
    until_done(lambda: Archiver(loop.config).run(everything=True))
    change(loop, 200, 300)
    until_done(lambda: Archiver(loop.config).run(everything=True))
    s3.faults = None
    assert faults.count > 5
    newest = Archive(loop.config).newest()
    assert newest is not None and len(newest.segments) > 1
    assert verify(Archive(loop.config)).faults == []


def race(uri: str, mark: str, count: int, start: Any, won: Any) -> None:
    objects = RemoteObjects(uri)
    start.wait()
    won.put([n for n in range(count) if objects.create(f"{n:03d}", f"{mark} {n}".encode())])


def test_each_name_has_one_winner(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of their own, straight to the server: nothing orders their requests."""
    assert s3.process is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.process.url)
    context = multiprocessing.get_context("spawn")
    start, won = context.Barrier(4), context.Queue()
    count, uri = 100, f"s3://lake/{tmp_path.name}/race"
    writers = [context.Process(target=race, args=(uri, f"w{n}", count, start, won)) for n in range(4)]
    for writer in writers:
        writer.start()
    names = sorted(name for _ in writers for name in won.get(timeout=120))
    for writer in writers:
        writer.join(60)
    assert names == list(range(count)), "each name has one winner"


def test_what_was_written_is_listed_at_once(s3: S3Server, tmp_path: Path) -> None:
    """More than one page of a list, by another client than the writer; and what was removed is gone."""
    writer, reader = s3.filesystem(), s3.filesystem()
    folder = f"lake/{tmp_path.name}/list"
    writer.pipe({f"{folder}/{n:020d}.json": b"1" for n in range(1100)})
    assert [path.rpartition("/")[2] for path in reader.ls(folder)] == [f"{n:020d}.json" for n in range(1100)]
    for n in range(5):
        writer.pipe_file(f"{folder}/new", str(n).encode())
        assert reader.cat_file(f"{folder}/new") == str(n).encode()
        writer.rm_file(f"{folder}/new")
        assert not reader.exists(f"{folder}/new")
        assert len(reader.ls(folder, refresh=True)) == 1100

"""Capture of a folder of binlog files that MySQL and MariaDB wrote: the store equals that of a capture from the server,
however the files come into the folder."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import CdcError, DamagedError, IdentityError, SourceRefusedError, SourceUnavailableError
from cdc.binlog.gtids import MariadbPosition
from cdc.capture import Capture
from cdc.cli import main as cli
from cdc.config import DestinationConfig, load
from cdc.decode import read
from cdc.source import folder_dump
from cdc.source.scan import read_file_start
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments, schemas_folder
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.capturing import capturing

Database = Callable[[Server], str]
SERVERS = ["mysql9", "mariadb11"]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def db(server: Server, database: Database) -> str:
    return database(server)


@pytest.fixture(autouse=True)
def _settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_dump, "SETTLE_S", 0.4)
    monkeypatch.setattr(folder_dump, "_POLL_S", 0.02)


def of_server(folder: Path, server: Server, db: str, start: str) -> DestinationConfig:
    number = zlib.crc32(str(folder).encode()) + 1
    access = f"password_env: TOWPATH_TEST_PASSWORD, server_id: {number}, start"
    return configure_text(folder, f"url: '{server.url}', {access}: {start}", db)


def configure_text(folder: Path, source: str, db: str) -> DestinationConfig:
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    file = folder / "conf" / "shop.yaml"
    file.write_text(
        f"source: {{{source}}}\ntables: {{include: ['{db}\\..*']}}\n"
        "store: {path: data/store}\nmeta: {path: data/meta}\napply: {target: ./lake}\n"
    )
    return load(file)


def of_files(folder: Path, files: Path, db: str, start: str = "earliest", more: str = "") -> DestinationConfig:
    return configure_text(folder, f"url: 'binlog://{files}', start: {start}{more}", db)


def position(server: Server) -> str:
    """Begins a new binlog file and returns its start."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        name = cursor.fetchall()[-1][0]
        return f"{{file: {name}, pos: 4}}"


def names(server: Server, start: str) -> list[str]:
    """Returns the server's binlog files from ``start`` on."""
    first = start.split()[1].rstrip(",")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        return [name for name, *_ in cursor.fetchall() if name >= first]


def transactions(config: DestinationConfig) -> list[tuple[int, int, int, bytes]]:
    """Returns what the index of a store says about each transaction, and the bytes of each."""
    stored: list[tuple[int, int, int, bytes]] = []
    if not config.store.path.is_dir():
        return stored
    for segment in list_segments(config.store.path):
        data = segment.read_bytes()
        for entry in read_entries(segment):
            if entry["length"]:
                at = int(entry["offset"])
                body = data[at : at + int(entry["length"])]
                stored.append((int(entry["seq"]), int(entry["commit_time_us"]), int(entry["row_events"]), body))
    return stored


def workload(server: Server, db: str, number: int = 0) -> None:
    server.execute(
        f"CREATE TABLE {db}.t{number} (id INT PRIMARY KEY, v VARCHAR(200))",
        *[
            f"INSERT INTO {db}.t{number} VALUES " + ",".join(f"({i}, REPEAT('x', 100))" for i in range(k, k + 200))
            for k in range(0, 2000, 200)
        ],
        f"ALTER TABLE {db}.t{number} ADD COLUMN n INT",
        f"UPDATE {db}.t{number} SET n = id WHERE id < 300",
        f"DELETE FROM {db}.t{number} WHERE id > 1500",
    )


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.rule("canal-server-14")
def test_a_folder_that_grows_gives_the_same_store(server: Server, db: str, tmp_path: Path) -> None:
    """Files grow by pieces that end anywhere, are replaced by new copies, and are compressed when they are finished."""
    start = position(server)
    workload(server, db)
    server.execute("FLUSH BINARY LOGS")
    workload(server, db, 1)
    server.execute("FLUSH BINARY LOGS")
    workload(server, db, 2)
    expected = of_server(tmp_path / "server", server, db, start)
    Capture(expected).run(until_current=True)
    wanted = transactions(expected)
    files = tmp_path / "files"
    files.mkdir()
    first, second, third = names(server, start)
    data = {name: (server.data / name).read_bytes() for name in (first, second, third)}
    config = of_files(tmp_path / "folder", files, db)
    (files / first).write_bytes(data[first][:3000])
    with capturing(config):
        rng = np.random.default_rng(1)
        for name in (first, second):  # appended to
            at = (files / name).stat().st_size if (files / name).exists() else 0
            for end in [*sorted(rng.integers(at, len(data[name]), 12).tolist()), len(data[name])]:
                with (files / name).open("ab") as out:
                    out.write(data[name][at:end])
                at = end
                time.sleep(0.04)
        (files / f"{first}.gz").write_bytes(gzip.compress(data[first]))
        (files / first).unlink()
        for end in (10_000, 50_000, len(data[third])):  # replaced
            (files / ".new").write_bytes(data[third][:end])
            os.replace(files / ".new", files / third)
            time.sleep(0.1)
        wait_for(lambda: len(transactions(config)) == len(wanted))
    assert transactions(config) == wanted
    assert len(wanted) > 30


@pytest.mark.long
def test_files_without_checksums(server: Server, db: str, tmp_path: Path) -> None:
    """Also those that begin or end with other settings than the ones beside them."""
    start = position(server)
    workload(server, db)
    try:
        server.execute("SET GLOBAL binlog_checksum = 'NONE'")
        workload(server, db, 1)
        server.execute("FLUSH BINARY LOGS")
        workload(server, db, 2)
    finally:
        server.execute("SET GLOBAL binlog_checksum = 'CRC32'")
    workload(server, db, 3)
    expected = of_server(tmp_path / "server", server, db, start)
    Capture(expected).run(until_current=True)
    files = tmp_path / "files"
    files.mkdir()
    config = of_files(tmp_path / "folder", files, db)
    for name in names(server, start):
        data = (server.data / name).read_bytes()
        for size in (len(data) // 2, len(data)):  # so that capture begins inside the file
            (files / name).write_bytes(data[:size])
            Capture(config).run(until_current=True)
    assert transactions(config) == transactions(expected)
    assert len({seq >> 34 for seq, *_ in transactions(config)}) == 4


def test_compressed_files_and_starts(server: Server, db: str, tmp_path: Path) -> None:
    start = position(server)
    workload(server, db)
    server.execute("FLUSH BINARY LOGS")
    workload(server, db, 1)
    expected = of_server(tmp_path / "server", server, db, start)
    Capture(expected).run(until_current=True)
    wanted = transactions(expected)
    files = tmp_path / "files"
    files.mkdir()
    for name in names(server, start):
        (files / f"{name}.gz").write_bytes(gzip.compress((server.data / name).read_bytes()))
    (files / "binlog.index").write_text("not a binlog")
    config = of_files(tmp_path / "folder", files, db)
    Capture(config).run(until_current=True)
    assert transactions(config) == wanted
    Capture(config).run(until_current=True)  # it proves the store, and finds nothing new
    assert transactions(config) == wanted


# --- what may be wrong with a folder


@pytest.fixture(scope="module", params=["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def recorded(request: pytest.FixtureRequest) -> tuple[Server, str, dict[str, bytes]]:
    """A server, a database, and three binlog files with its changes: two that are finished, and the present one."""
    server: Server = request.getfixturevalue(request.param)
    db = f"recorded_{os.getpid()}_{time.time_ns()}"
    server.execute(f"CREATE DATABASE {db}")
    start = position(server)
    for number in range(3):
        workload(server, db, number)
        if number < 2:
            time.sleep(1.1 * (1 - number))  # so that times tell files apart
            server.execute("FLUSH BINARY LOGS")
    return server, db, {name: (server.data / name).read_bytes() for name in names(server, start)}


Recorded = tuple[Server, str, dict[str, bytes]]


@pytest.fixture
def files(tmp_path: Path, recorded: Recorded) -> Path:
    """A folder with the three files."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name, data in recorded[2].items():
        (folder / name).write_bytes(data)
    return folder


def fails(config: DestinationConfig, error: type[CdcError], *texts: str) -> None:
    """Captures, and expects an error with these texts."""
    with pytest.raises(error) as raised:
        Capture(config).run(until_current=True)
    for text in texts:
        assert text in str(raised.value)


def test_a_missing_file_stops_capture_before_it(recorded: Recorded, files: Path, tmp_path: Path) -> None:
    _, db, data = recorded
    first, second, _ = data
    config = of_files(tmp_path, files, db)
    (files / second).rename(tmp_path / second)
    fails(config, SourceRefusedError, f"{second} is missing in the folder", f"Copy {second} into the folder")
    before = transactions(config)
    assert before and all(seq >> 34 & 0x1FFFFF == int(first[-6:]) for seq, *_ in before)
    (tmp_path / second).rename(files / second)
    Capture(config).run(until_current=True)
    assert len(transactions(config)) == 3 * len(before)
    (files / first).unlink()  # a file that was read may go
    (files / second).unlink()
    Capture(config).run(until_current=True)


def test_a_cut_file_is_damaged_if_another_one_follows(recorded: Recorded, files: Path, tmp_path: Path) -> None:
    _, db, data = recorded
    _, second, third = data
    config = of_files(tmp_path, files, db)
    cut = data[second][:-40]  # inside the ROTATE event, or the last one before it
    (files / second).write_bytes(cut)
    fails(config, DamagedError, second, "is cut off or damaged", "Copy the whole file again")
    size = len(data[second])
    for length in range(size - 60, size - 20):  # where the last event begins
        if int.from_bytes(data[second][length + 9 : length + 13], "little") == size - length:
            (files / second).write_bytes(data[second][:length])
            fails(config, DamagedError, second, f"is not whole, and {third} follows", "without a crash")
            break
    else:
        raise AssertionError
    (files / second).write_bytes(data[second])
    Capture(config).run(until_current=True)
    assert len({seq >> 34 for seq, *_ in transactions(config)}) == 3


def test_a_cut_last_file_is_waited_for(recorded: Recorded, files: Path, tmp_path: Path) -> None:
    _, db, data = recorded
    *_, third = data
    config = of_files(tmp_path, files, db)
    (files / third).write_bytes(data[third][:-100])
    Capture(config).run(until_current=True)
    half = transactions(config)
    (files / third).write_bytes(data[third])
    Capture(config).run(until_current=True)
    assert transactions(config)[: len(half)] == half and len(transactions(config)) > len(half)


def test_damage_inside_a_file(recorded: Recorded, files: Path, tmp_path: Path) -> None:
    _, db, data = recorded
    first = next(iter(data))
    config = of_files(tmp_path, files, db)
    damaged = bytearray(data[first])
    damaged[len(damaged) // 2] ^= 1
    (files / first).write_bytes(damaged)
    fails(config, DamagedError, first, "the file is damaged")
    Path(files / first).write_bytes(data[first])
    Capture(config).run(until_current=True)


def test_a_replaced_file(recorded: Recorded, files: Path, tmp_path: Path) -> None:
    """A file of the same name is another one: shorter, of another server, or with other transactions."""
    _, db, data = recorded
    _, second, third = data
    config = of_files(tmp_path, files, db)
    Capture(config).run(until_current=True)
    stored = transactions(config)
    (files / third).write_bytes(data[third][:2000])
    os.utime(files / third, (1, 1))
    fails(config, IdentityError, f"the store ends at {third}:", "the file has 2000 bytes")
    other = data[third][:30] + b"\xff" + data[third][31:]
    (files / third).write_bytes(other)
    fails(config, CdcError, third)
    longer = data[second] + data[second]
    (files / third).write_bytes(longer[: len(data[third]) + 100])
    fails(config, IdentityError, third)
    (files / third).unlink()
    fails(config, SourceRefusedError, f"the store ends at {third}:", f"Copy {third}")
    (files / third).write_bytes(data[third])
    Capture(config).run(until_current=True)
    assert transactions(config) == stored


def test_a_folder_that_vanishes_and_a_file_that_is_written_anew(
    recorded: Recorded, files: Path, tmp_path: Path
) -> None:
    """The disk is unmounted for a while; and `cp` cuts a file to nothing before it writes it again."""
    _, db, data = recorded
    last = list(data)[-1]
    expected = of_files(tmp_path / "expected", files, db)
    Capture(expected).run(until_current=True)
    (files / last).write_bytes(data[last][:20_000])
    config = of_files(tmp_path, files, db)
    with capturing(config):
        wait_for(lambda: len({seq >> 34 for seq, *_ in transactions(config)}) == 3)
        files.rename(tmp_path / "away")
        time.sleep(0.3)
        (tmp_path / "away").rename(files)
        with (files / last).open("wb") as out:
            for at in range(0, len(data[last]), 30_000):
                out.write(data[last][at : at + 30_000])
                out.flush()
                time.sleep(0.02)
        wait_for(lambda: len(transactions(config)) == len(transactions(expected)))
    assert transactions(config) == transactions(expected)


def test_folders_that_are_none(recorded: Recorded, files: Path, tmp_path: Path) -> None:
    _, db, data = recorded
    names_ = list(data)
    fails(of_files(tmp_path / "1", tmp_path / "none", db), SourceUnavailableError, "mounted")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "binlog.index").write_text("")
    fails(of_files(tmp_path / "2", tmp_path / "empty", db), SourceUnavailableError, "holds no binlog file", "mounted")
    (files / "other-bin.000001").write_bytes(data[names_[0]])
    fails(of_files(tmp_path / "3", files, db), SourceRefusedError, "several servers", "binlog, other-bin")
    (files / "other-bin.000001").write_bytes(b"no binlog")  # a foreign file of another name does no harm
    (files / f"{names_[0]}.tmp").write_bytes(b"no binlog")
    Capture(of_files(tmp_path / "4", files, db)).run(until_current=True)
    (files / names_[1]).write_bytes(b"no binlog")
    fails(of_files(tmp_path / "5", files, db), DamagedError, names_[1], "is not a binlog file")
    (files / names_[1]).write_bytes(b"\xfdbin" + bytes(600))
    fails(of_files(tmp_path / "6", files, db), SourceRefusedError, names_[1], "encrypted", "--read-from-remote-server")
    relay = bytearray(data[names_[1]])
    relay[4 + 17] |= 0x40
    (files / names_[1]).write_bytes(sealed(relay))
    fails(of_files(tmp_path / "7", files, db), SourceRefusedError, names_[1], "relay log")
    foreign = bytearray(data[names_[1]])
    foreign[4 + 5 : 4 + 9] = (77).to_bytes(4, "little")
    (files / names_[1]).write_bytes(sealed(foreign))
    fails(of_files(tmp_path / "8", files, db), IdentityError, names_[1], "does not follow", "server_id 77")
    (files / names_[1]).write_bytes(data[names_[0]])  # a copy under a wrong name
    fails(of_files(tmp_path / "9", files, db), CdcError, names_[1])


def sealed(data: bytearray) -> bytes:
    """Returns a file with the right checksum of its format description."""
    head = 4 + int.from_bytes(data[13:17], "little")
    data[head - 4 : head] = zlib.crc32(data[4 : head - 4]).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("start", ["earliest", "position", "time", "gtid"])
def test_starts(recorded: Recorded, files: Path, tmp_path: Path, start: str) -> None:
    _, db, data = recorded
    second = list(data)[1]
    Capture(of_files(tmp_path / "all", files, db)).run(until_current=True)
    every = transactions(load(tmp_path / "all/conf/shop.yaml"))
    later = [transaction for transaction in every if transaction[0] >> 34 & 0x1FFFFF >= int(second[-6:])]
    if start == "position":
        config = of_files(tmp_path, files, db, f"{{file: {second}, pos: 4}}")
    elif start == "gtid":
        file_start = read_file_start(load(tmp_path / "all/conf/shop.yaml").source, second)
        last = file_start.last_gtids
        gtid_position = MariadbPosition.of_state(last) if last is not None else file_start.gtids
        config = of_files(tmp_path, files, db, f"{{gtid: '{gtid_position}'}}")
    elif start == "time":
        second_s = next(
            transaction[1] // 1_000_000
            for transaction in later
            if transaction[1] // 1_000_000 > every[0][1] // 1_000_000
        )
        when = datetime.fromtimestamp(second_s, UTC).isoformat()
        config = of_files(tmp_path, files, db, f"{{time: '{when}'}}")
        later = [transaction for transaction in every if transaction[1] // 1_000_000 >= second_s]
    else:
        config = of_files(tmp_path, files, db)
        later = every
    Capture(config).run(until_current=True)
    assert transactions(config) == later


def test_wrong_starts(recorded: Recorded, files: Path, tmp_path: Path) -> None:
    _, db, data = recorded
    first = next(iter(data))
    base, _, number = first.rpartition(".")
    before = f"{base}.{int(number) - 1:06d}"
    for case, start, texts in (
        ("1", f"{{file: {before}, pos: 4}}", [f"source.start names {before}:4, and the folder has"]),
        ("2", f"{{file: {first}, pos: 99999999}}", ["source.start names", "the file has"]),
        ("3", f"{{file: {first}, pos: 777}}", ["no event begins at", ":777"]),
        ("4", "{time: '2000-01-01T00:00:00Z'}", ["source.start.time is"]),
        ("5", "{time: '2099-01-01T00:00:00Z'}", ["source.start.time is"]),
    ):
        fails(of_files(tmp_path / case, files, db, start), CdcError, *texts)


def test_check_and_commands(
    recorded: Recorded, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, db, data = recorded
    _, second, third = data
    config = of_files(tmp_path, files, db)
    conf = str(config.file.parent)

    def run(*arguments: str) -> tuple[int, str]:
        code = cli.main(["--conf-dir", conf, *arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    code, text = run("check", "shop")
    assert "wrote the files in" in text and "`cdc verify`" in text, text
    (files / second).rename(tmp_path / second)
    (files / third).write_bytes(data[third][:-10])
    code, text = run("check", "shop")
    assert code == 2 and f"{second} is missing between others" in text and "ends inside an event" in text
    (tmp_path / second).rename(files / second)
    code, text = run("capture", "shop", "--until-current")
    assert code == 0, text
    code, text = run("check", "shop")
    assert "source: history" in text and "has the same" in text
    code, text = run("status", "shop")
    assert code == 0 and f"binlog files in {files}" in text
    code, text = run("verify", "shop")
    assert code == 2 and "a comparison with the source needs a server" in text
    code, text = run("snapshot", "shop", f"{db}.t0")
    assert code == 2 and "a snapshot needs a server" in text


def test_a_killed_capture_goes_on(recorded: Recorded, files: Path, tmp_path: Path) -> None:
    _, db, data = recorded
    expected = of_files(tmp_path / "expected", files, db)
    Capture(expected).run(until_current=True)
    config = of_files(tmp_path, files, db)
    last = list(data)[-1]
    (files / last).write_bytes(data[last][: len(data[last]) // 2])
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), "capture", "shop"]
    for part in (3, 4):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: list_segments(config.store.path) != [] and len(transactions(config)) > 3)
            (files / last).write_bytes(data[last][: len(data[last]) * part // 4])
            time.sleep(0.3)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    Capture(config).run(until_current=True)
    assert transactions(config) == transactions(expected)


def test_the_files_of_a_lost_server(server: Server, db: str, tmp_path: Path) -> None:
    """A store that was captured from a server goes on with a copy of its files, and from there with the server."""
    start = position(server)
    workload(server, db)
    config = of_server(tmp_path / "one", server, db, start)
    Capture(config).run(until_current=True)
    workload(server, db, 1)
    server.execute("FLUSH BINARY LOGS")
    files = tmp_path / "files"
    files.mkdir()
    for name in names(server, start):
        (files / name).write_bytes((server.data / name).read_bytes())
    Capture(of_files(tmp_path / "one", files, db)).run(until_current=True)
    workload(server, db, 2)
    Capture(of_server(tmp_path / "one", server, db, start)).run(until_current=True)
    expected = of_server(tmp_path / "two", server, db, start)
    Capture(expected).run(until_current=True)
    assert transactions(config) == transactions(expected)


def test_a_server_takes_the_place_of_its_files(server: Server, db: str, tmp_path: Path) -> None:
    """Capture that has begun with files goes on with their server, by GTIDs, in a new epoch."""
    start = position(server)
    workload(server, db)
    files = tmp_path / "files"
    files.mkdir()
    for name in names(server, start):
        (files / name).write_bytes((server.data / name).read_bytes())
    config = of_files(tmp_path, files, db)
    Capture(config).run(until_current=True)
    before = transactions(config)
    workload(server, db, 1)
    config = of_server(tmp_path, server, db, "now")
    Capture(config).run(until_current=True)
    after = transactions(config)
    assert after[: len(before)] == before and len(after) == 2 * len(before)
    assert {seq >> 55 for seq, *_ in after} == {0, 1}


def test_rows_without_names_need_definitions(server: Server, db: str, tmp_path: Path) -> None:
    """The definitions that are given hold until DDL statements change them."""
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4)")
    described = of_server(tmp_path / "server", server, db, "now")
    Capture(described).run(until_current=True)
    (schemas,) = schemas_folder(described.store.path).glob("*.json")
    files = tmp_path / "files"
    files.mkdir()
    try:
        server.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
        start = position(server)
        server.execute(
            f"INSERT INTO {db}.t VALUES (1, 'a')",
            f"ALTER TABLE {db}.t ADD COLUMN n INT UNSIGNED FIRST",
            f"INSERT INTO {db}.t VALUES (4000000000, 2, 'b')",
            f"CREATE TABLE {db}.u (id INT PRIMARY KEY, v VARCHAR(20))",
            f"INSERT INTO {db}.u VALUES (1, 'a')",
        )
    finally:
        server.execute("SET GLOBAL binlog_row_metadata = 'FULL'")
    (name,) = names(server, start)
    (files / name).write_bytes((server.data / name).read_bytes())
    bare = of_files(tmp_path / "bare", files, db)
    fails(bare, SourceRefusedError, f"the rows of {db}.t name no columns", "its definition is not known")
    code = cli.main(["--conf-dir", str(bare.file.parent), "check", "shop"])
    assert code == 2
    config = of_files(tmp_path / "given", files, db, more=f", schemas: {schemas}")
    fails(config, SourceRefusedError, f"the rows of {db}.u name no columns", "character set")  # the database's
    stored = StoreReader(config.store.path).newest_schemas()
    assert stored is not None and stored[1].tables[f"{db}.t"].column_names == ("n", "id", "v")
    rows = [row for batch in read(config.store.path, table=f"{db}.t") for row in batch.to_pylist()]
    assert [(row["id"], row["v"], row.get("n")) for row in rows] == [(1, "a", None), (2, "b", 4000000000)]


@pytest.mark.long
@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_crashed(kind: str, tmp_path: Path) -> None:
    """A crash leaves a file without a last event. It is finished when the server has started again."""
    with Server(kind) as server:
        server.execute("CREATE DATABASE shop")
        start = position(server)
        workload(server, "shop")
        server.kill()
        before = {path.name: path.read_bytes() for path in server.data.glob("binlog.0*")}
        server.restart()
        workload(server, "shop", 1)
        server.halt()  # the next file ends with STOP
        server.restart()
        workload(server, "shop", 2)
        files = tmp_path / "files"
        files.mkdir()
        wanted = names(server, start)
        for name in wanted:
            (files / name).write_bytes((server.data / name).read_bytes())
        config = of_files(tmp_path / "files-conf", files, "shop")
        Capture(config).run(until_current=True)
        expected = of_server(tmp_path / "server-conf", server, "shop", start)
        Capture(expected).run(until_current=True)
        assert transactions(config) == transactions(expected)
        crashed = wanted[0]
        (files / crashed).write_bytes(before[crashed])  # as it was copied while the server wrote it
        stale = of_files(tmp_path / "stale", files, "shop")
        if kind == "mysql9":
            fails(stale, DamagedError, crashed, "it is the copy of a file that its server was still writing")
        whole = (server.data / crashed).read_bytes()
        at = whole.rindex(b"INSERT") if b"INSERT" in whole else len(whole) // 2
        end = last_boundary(whole[:at])
        (files / crashed).write_bytes(whole[:end])
        cut = of_files(tmp_path / "cut", files, "shop")
        fails(cut, DamagedError, crashed, "it lacks", "transactions")


def last_boundary(data: bytes) -> int:
    """Returns the end of the last whole event."""
    at = 4
    while at + 19 <= len(data) and at + int.from_bytes(data[at + 9 : at + 13], "little") <= len(data):
        at += int.from_bytes(data[at + 9 : at + 13], "little")
    return at

"""Starts by GTIDs and by time on real servers: the server itself says which transaction begins where capture begins."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError, SourceRefusedError
from cdc.binlog.gtids import GtidSet, MariadbGtid, MariadbPosition
from cdc.binlog.positions import BinlogPosition
from cdc.capture import Capture
from cdc.cli import main as cli
from cdc.config import DestinationConfig, SourceConfig, load
from cdc.source.connection import connect, query
from cdc.source.locate import Located, after_gtid_position, after_gtid_set, at_time
from cdc.source.purge import PurgeWatch
from cdc.source.scan import read_file_start, read_transactions
from cdc.source.server import binlog_files
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import PASSWORD, Server
from tests.support.capturing import stored_ids
from tests.support.versions import lacks

LARGE_BYTES = 17_000_000  # two packets


@dataclass(frozen=True)
class Moment:
    """The server between two transactions."""

    gtid: str
    """The GTIDs that it has executed."""
    time_us: int
    """Its clock."""
    rows: int
    """The number of rows of table t."""


@dataclass(frozen=True)
class Log:
    """A server with a binlog of several files, and a moment before each of its transactions and after the last."""

    server: Server
    source: SourceConfig
    moments: list[Moment]

    @property
    def is_mysql(self) -> bool:
        return self.server.kind.name == "mysql9"

    def files(self) -> list[str]:
        with connect(self.source) as conn:
            return [file.name for file in binlog_files(conn)]

    def locate(self, gtid: str) -> Located:
        with connect(self.source) as conn:
            files = [file.name for file in binlog_files(conn)]
            if self.is_mysql:
                return after_gtid_set(self.source, conn, files, GtidSet.parse(gtid))
            return after_gtid_position(self.source, conn, files, MariadbPosition.parse(gtid))

    def variable(self, name: str) -> str:
        with connect(self.source) as conn:
            return str(query(conn, f"SELECT @@GLOBAL.{name} AS v")[0]["v"])

    def at_time(self, time_us: int) -> BinlogPosition:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
        with connect(self.source) as conn:
            return at_time(self.source, conn, [file.name for file in binlog_files(conn)], moment).position

    def next_gtid(self, position: BinlogPosition) -> str | None:
        """Returns the GTID of the first transaction from a position on, as SHOW BINLOG EVENTS prints it."""
        files = self.files()
        with connect(self.source) as conn:
            for file in files[files.index(position.file) :]:
                start = position.pos if file == position.file else 4
                for row in query(conn, f"SHOW BINLOG EVENTS IN '{file}' FROM {start}"):
                    kind = str(row["Event_type"]).lower()
                    if kind.startswith("gtid") and kind != "gtid_list":
                        assert file != position.file or int(row["Pos"]) >= position.pos
                        text = str(row["Info"])
                        return text.split("'")[1] if self.is_mysql else text.rsplit(" ", 1)[1]
        return None

    def gtid_between(self, before: Moment, after: Moment) -> str:
        """Returns the GTID of the transaction between two moments."""
        if self.is_mysql:
            return str(GtidSet.parse(after.gtid) - GtidSet.parse(before.gtid))
        earlier, other = MariadbPosition.parse(before.gtid), MariadbPosition.parse(after.gtid)
        return next(str(gtid) for gtid in other if gtid not in earlier)


def now(server: Server, rows: int) -> Moment:
    is_mysql = server.kind.name == "mysql9"
    gtids = "@@gtid_executed" if is_mysql else "@@gtid_binlog_pos"
    with server.connect() as conn:
        row = query(conn, f"SELECT {gtids} AS g, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) AS t")[0]
    return Moment("".join(str(row["g"]).split()), int(row["t"]), rows)


@pytest.fixture(scope="module", params=["mysql9", "mariadb11"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    kind = request.param
    is_mysql = kind == "mysql9"
    with Server(kind, options=["--max-allowed-packet=64M"]) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_PW", PASSWORD)
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v LONGTEXT)")
        moments = []
        for number in range(14):
            if number % 3 == 0:
                time.sleep(1.1)  # another second, which MariaDB's times need
                server.execute("FLUSH BINARY LOGS")
            moments.append(now(server, number))
            other = [] if lacks(kind, "tagged GTIDs") else ["SET gtid_next = 'AUTOMATIC:tag'"]
            other = other if is_mysql else ["SET gtid_domain_id = 7"]
            size = LARGE_BYTES if number == 4 else 10
            server.execute(
                *(other if number % 4 == 2 else ()), f"INSERT INTO d.t VALUES ({number + 1}, REPEAT('x', {size}))"
            )
        moments.append(now(server, 14))
        time.sleep(1.1)  # the second after the last transaction has passed, too
        source = SourceConfig(url=server.url, password_env="SOURCE_PW", server_id=41_000_002)
        yield Log(server, source, moments)


def test_the_start_of_a_file_is_what_the_server_says(log: Log) -> None:
    with connect(log.source) as conn:
        for file in log.files():
            rows = query(conn, f"SHOW BINLOG EVENTS IN '{file}' LIMIT 3")
            start = read_file_start(log.source, file)
            assert abs(start.created_s - log.moments[0].time_us / 1e6) < 600
            if log.is_mysql:
                said = next(str(row["Info"]) for row in rows if row["Event_type"] == "Previous_gtids")
                assert start.gtids == GtidSet.parse(said) and start.last_gtids is None
            else:
                said = next(str(row["Info"]) for row in rows if row["Event_type"] == "Gtid_list").strip("[]")
                assert start.last_gtids is not None and start.gtids is None
                listed = {MariadbGtid.parse(part) for part in said.split(",") if part}
                assert set(start.last_gtids) == listed
    if log.is_mysql and not lacks(log.server, "tagged GTIDs"):
        assert ":tag:" in log.moments[-1].gtid, "tagged GTIDs are in the sets"


def test_printed_sets_are_the_servers(log: Log) -> None:
    if log.is_mysql:
        assert str(GtidSet.parse(log.moments[-1].gtid)) == log.moments[-1].gtid
    else:
        assert str(MariadbPosition.parse(log.moments[-1].gtid)) == log.moments[-1].gtid


def test_every_transaction_is_read_with_its_position(log: Log) -> None:
    transactions = list(read_transactions(log.source, log.files()[0]))
    wanted = [log.gtid_between(a, b) for a, b in pairwise(log.moments)]
    assert [str(transaction.gtid) for transaction in transactions][-len(wanted) :] == wanted
    for transaction in transactions:
        assert log.next_gtid(transaction.begin) == str(transaction.gtid)
        assert transaction.begin.file == transaction.end.file and transaction.begin.pos < transaction.end.pos
    for transaction, following in pairwise(transactions):
        assert transaction.end == following.begin or transaction.end.file < following.begin.file or not log.is_mysql
    for transaction, (before, after) in zip(transactions[-len(wanted) :], pairwise(log.moments), strict=True):
        margin_us = 0 if log.is_mysql else 1_000_000
        assert before.time_us - margin_us <= transaction.time_us <= after.time_us


def test_every_gtid_set_leads_to_the_transaction_after_it(log: Log) -> None:
    for before, after in pairwise(log.moments):
        located = log.locate(before.gtid)
        assert log.next_gtid(located.position) == log.gtid_between(before, after)
        assert located.gtid == before.gtid
    located = log.locate(log.moments[-1].gtid)
    assert log.next_gtid(located.position) is None
    # A position after which nothing was written continues with the next transaction.
    assert located.position.file == log.files()[-1]


@pytest.mark.rule("canal-server-3")
def test_every_time_leads_to_the_transaction_committed_then(log: Log) -> None:
    pairs = list(pairwise(log.moments))
    for number, (before, after) in enumerate(pairs):
        if log.is_mysql or number % 3 == 0:
            assert log.next_gtid(log.at_time(before.time_us)) == log.gtid_between(before, after)
    last = log.at_time(log.moments[-1].time_us + (0 if log.is_mysql else 1_000_000))
    assert log.next_gtid(last) is None


def test_a_time_that_has_not_come_or_was_never_logged(log: Log) -> None:
    with pytest.raises(ConfigError, match="the server's clock says") as caught:
        log.at_time(log.moments[-1].time_us + 86_400_000_000)
    assert "start: now" in str(caught.value)
    with pytest.raises(ConfigError, match=f"oldest binlog file, {log.files()[0]}, was begun at") as caught:
        log.at_time(log.moments[0].time_us - 86_400_000_000)
    assert "start: earliest" in str(caught.value)


def test_gtids_that_the_server_has_not_executed(log: Log) -> None:
    alien = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3" if log.is_mysql else "0-999-3"
    with pytest.raises(ConfigError, match=alien if log.is_mysql else "no such transaction"):
        log.locate(alien)
    if not log.is_mysql:
        ahead = MariadbPosition.parse(log.moments[-1].gtid).last(0)
        assert ahead is not None
        with pytest.raises(ConfigError, match="no such transaction"):
            log.locate(str(replace(ahead, number=ahead.number + 1)))


def test_a_set_that_the_binlog_never_had(log: Log) -> None:
    """It lacks one transaction before others that it has, as a replica with another order of commits could."""
    first, then, end = log.moments[5], log.moments[6], log.moments[9]
    if log.is_mysql:
        hole = GtidSet.parse(end.gtid) - (GtidSet.parse(then.gtid) - GtidSet.parse(first.gtid))
        with pytest.raises(ConfigError, match="is not a set that the server's binlog passes through") as caught:
            log.locate(str(hole))
        assert log.gtid_between(first, then) in str(caught.value)
        return
    # Domain 7 as it was later than domain 0.
    later = MariadbPosition.parse(log.moments[-1].gtid).last(7)
    begin = MariadbPosition.parse(log.moments[3].gtid).last(0)
    assert later is not None and begin is not None
    with pytest.raises(ConfigError, match=f"passes through: {later} comes after"):
        log.locate(f"{begin},{later}")


# --- every start, through capture


@pytest.fixture
def configure(log: Log, tmp_path: Path) -> Callable[[str], DestinationConfig]:
    def make(start: str) -> DestinationConfig:
        (tmp_path / "conf").mkdir(exist_ok=True)
        server_id = zlib.crc32(str(tmp_path).encode()) + 1
        file = tmp_path / "conf" / "shop.yaml"
        file.write_text(
            f"source: {{url: '{log.server.url}', password_env: SOURCE_PW, server_id: {server_id}, start: {start}}}\n"
            "tables: {include: ['d\\.t']}\n"
            "store: {path: data/store}\nmeta: {path: data/meta}\napply: {target: ./lake}\n"
        )
        return load(file)

    return make


def iso(time_us: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)).isoformat()


@pytest.mark.parametrize("kind", ["earliest", "now", "snapshot", "position", "gtid", "time"])
def test_capture_begins_there_and_continues(log: Log, configure: Callable[[str], DestinationConfig], kind: str) -> None:
    moment = log.moments[9]
    start = {
        "position": str({"file": log.locate(moment.gtid).position.file, "pos": log.locate(moment.gtid).position.pos}),
        "gtid": f"{{gtid: '{moment.gtid}'}}",
        "time": f"{{time: '{iso(moment.time_us)}'}}",
    }.get(kind, kind)
    skipped = {"earliest": 0, "now": 14, "snapshot": 14}.get(kind, moment.rows)
    config = configure(start)
    Capture(config).run(until_current=True)
    assert stored_ids(config, "d.t") == list(range(skipped + 1, 15))
    beginning = StoreReader(config.store.path).beginning()
    assert beginning is not None
    if kind in ("gtid", "now", "snapshot"):
        assert beginning.gtid == (moment if kind == "gtid" else log.moments[-1]).gtid
    # The second run continues, whatever source.start says.
    Capture(configure("now")).run(until_current=True)
    assert stored_ids(config, "d.t") == list(range(skipped + 1, 15))


@pytest.mark.parametrize("tool", ["Debezium", "Canal", "Maxwell"])
def test_capture_begins_where_another_tool_has_stopped(
    log: Log, configure: Callable[[str], DestinationConfig], tool: str, tmp_path: Path
) -> None:
    """Debezium tells the GTIDs, Maxwell the end of a transaction, and Canal an event inside the one that it has sent:
    that one is captured once more."""
    moment = log.moments[9]
    first = log.locate(moment.gtid).position
    gtid = log.gtid_between(log.moments[8], moment)
    sent = next(each for each in read_transactions(log.source, log.files()[0]) if str(each.gtid) == gtid)
    document = {
        "Debezium": {"file": first.file, "pos": first.pos, "gtids": moment.gtid},
        "Canal": {"postion": {"journalName": sent.end.file, "position": sent.end.pos - 31, "gtid": ""}},
        "Maxwell": {"binlog_file": sent.end.file, "binlog_position": sent.end.pos, "gtid_set": None},
    }[tool]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "offsets.json").write_text(json.dumps(document))
    config = configure("{offsets: offsets.json}")
    Capture(config).run(until_current=True)
    assert stored_ids(config, "d.t") == list(range(9 if tool == "Canal" else 10, 15))
    (tmp_path / "conf" / "offsets.json").unlink()  # it is not read again
    Capture(config).run(until_current=True)
    assert stored_ids(config, "d.t") == list(range(9 if tool == "Canal" else 10, 15))


# --- these change the server, and come last


def test_a_purge_that_comes_near_is_an_alarm(
    log: Log, configure: Callable[[str], DestinationConfig], capfd: pytest.CaptureFixture[str]
) -> None:
    files = log.files()
    watch = PurgeWatch(log.source)
    before = log.variable("binlog_expire_logs_seconds")
    log.server.execute("SET GLOBAL binlog_expire_logs_seconds = 86400")
    with connect(log.source) as conn:
        far = watch.measure(conn, BinlogPosition(files[1], 4))
        newest = watch.measure(conn, BinlogPosition(files[-1], 4))
    assert far.left > 0.9 and far.purge_in_s is not None and far.retention_s is not None
    assert newest.left == 1 and newest.purge_at_s is None and 0 < newest.unread_bytes < far.unread_bytes
    # The file after it was created some seconds ago: with this retention hardly anything is left.
    age_s = far.now_s + far.retention_s - (far.purge_at_s or 0)
    log.server.execute(f"SET GLOBAL binlog_expire_logs_seconds = {int(age_s * 1.1) + 1}")
    try:
        with connect(log.source) as conn:
            near = watch.measure(conn, BinlogPosition(files[1], 4))
        assert near.left < 0.25 and near.unread_bytes == far.unread_bytes
        config = configure(f"{{file: {files[1]}, pos: 4}}")
        Capture(config).run(until_current=True)
        assert "the source is about to purge what was not read" in capfd.readouterr().err
        # The store ends in a file that is not the newest one any more.
        log.server.execute("SET GLOBAL binlog_expire_logs_seconds = 1000", "FLUSH BINARY LOGS")
        folder = str(config.file.parent)
        assert _unread(folder, capfd) == ("ok", True)
        time.sleep(1.1)
        log.server.execute("SET GLOBAL binlog_expire_logs_seconds = 1")
        assert _unread(folder, capfd) == ("error", False)
    finally:
        log.server.execute(f"SET GLOBAL binlog_expire_logs_seconds = {before}")
    assert log.files()[0] == files[0], "nothing was purged by this"
    if log.is_mysql:
        return
    with connect(log.source) as conn:
        total = sum(file.size_bytes for file in binlog_files(conn))
    log.server.execute(f"SET GLOBAL max_binlog_total_size = {int(total * 1.2)}")
    try:
        with connect(log.source) as conn:
            by_size = watch.measure(conn, BinlogPosition(files[0], 4))
            measured = watch.measure(conn, BinlogPosition(log.files()[-2], 4))
        assert by_size.left == pytest.approx(0.2 / 1.2, abs=0.01) and measured.left > by_size.left
    finally:
        log.server.execute("SET GLOBAL max_binlog_total_size = 0")


def _unread(folder: str, capfd: pytest.CaptureFixture[str]) -> tuple[str, bool]:
    """Returns the level of the finding of `cdc check`, and whether nothing is wrong with the destination."""
    capfd.readouterr()
    code = cli.main(["--conf-dir", folder, "check", "shop", "--json"])
    answer = json.loads(capfd.readouterr().out)
    assert code == (0 if answer["ok"] else 2)
    return next(f["level"] for f in answer["findings"] if f["subject"] == "source: unread"), answer["ok"]


def test_purged_transactions_are_named(log: Log) -> None:
    files = log.files()
    log.server.execute(f"PURGE BINARY LOGS TO '{files[3]}'")
    with pytest.raises(SourceRefusedError, match="purged binlog files that come after") as caught:
        log.locate(log.moments[1].gtid)
    assert "start: earliest" in str(caught.value)
    with pytest.raises(ConfigError, match=f"oldest binlog file, {files[3]}"):
        log.at_time(log.moments[1].time_us)
    moment, after = log.moments[-2], log.moments[-1]
    assert log.next_gtid(log.locate(moment.gtid).position) == log.gtid_between(moment, after)


def test_a_server_without_gtids(log: Log) -> None:
    if not log.is_mysql:
        return  # MariaDB always has GTIDs
    before = now(log.server, 14)
    for mode in ("ON_PERMISSIVE", "OFF_PERMISSIVE"):
        log.server.execute(f"SET GLOBAL gtid_mode = {mode}")
    log.server.execute("FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (100, 'anonymous')")
    end = now(log.server, 15)
    assert end.gtid == before.gtid
    with pytest.raises(ConfigError, match="the server writes no GTIDs"):
        log.locate(end.gtid)
    # A time finds an anonymous transaction too.
    file = log.files()[-1]
    [anonymous] = read_transactions(log.source, file)
    assert anonymous.gtid is None and log.at_time(anonymous.time_us) == anonymous.begin
    with connect(log.source) as conn:
        events = query(conn, f"SHOW BINLOG EVENTS IN '{file}' FROM {anonymous.begin.pos} LIMIT 1")
    assert events[0]["Event_type"] == "Anonymous_Gtid"
    # With GTIDs again, it is one that the set does not have.
    log.server.execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    assert log.locate(end.gtid).position == anonymous.begin

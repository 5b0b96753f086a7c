"""Finds the position in the server's binlog that belongs to a GTID set, a GTID position or a time, to begin there.

The binlog files are bisected by the first events of each: the GTIDs before it, or the time of its creation. Then the
transactions of one file are read until the first that is not to be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from cdc.base.errors import ConfigError, SourceRefusedError
from cdc.base.units import iso_time_us, time_us
from cdc.binlog.gtids import GtidSet, MariadbGtid, MariadbPosition
from cdc.binlog.positions import BinlogPosition
from cdc.config import SourceConfig
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import place_of
from cdc.source.history import executed_gtids, purged_gtids
from cdc.source.scan import FileStart, ScannedTransaction, read_file_start, read_transactions
from cdc.source.server import Connection, Source, clock_and_position, parse_version, server_version, variables

_EARLIEST = "To begin with the oldest transaction that the server still has, write start: earliest."


@dataclass(frozen=True)
class Located:
    """A position, and the GTIDs before it."""

    position: BinlogPosition
    gtid: str | None = None


def after_gtid_set(source: SourceConfig, conn: Source, files: Sequence[str], start_set: GtidSet) -> Located:
    """Returns the position of MySQL's first transaction that is not in ``start_set``. ``files`` are the server's binlog
    files, oldest first.

    The set must be one that the server's binlog passes through: all of it executed, nothing after it purged, and
    nothing of it behind a transaction that it lacks. Raises ConfigError, SourceRefusedError, SourceUnavailableError.
    """
    place = f"source {place_of(source)}"
    executed_text = executed_gtids(conn, "mysql")
    mode = "ON" if isinstance(conn, BinlogFiles) else variables(conn, ("gtid_mode",)).get("gtid_mode", "OFF")
    if executed_text is None or not mode.upper().startswith("ON"):
        raise ConfigError(
            f"source.start.gtid is given, and the server writes no GTIDs (gtid_mode is {mode})",
            place=place,
            remedy="Write a file and a position, or a time.",
        )
    unknown = start_set - GtidSet.parse(executed_text)
    if unknown:
        raise ConfigError(
            f"source.start.gtid has {unknown.count} GTIDs that the server has not executed: {unknown.shown()}",
            place=place,
            remedy="Check that source.url names the server that the set comes from, or one of its replicas that is as "
            "far.",
        )
    purged = purged_gtids(conn)
    starts = FileStarts(source)
    first = purged | (starts[files[0]].gtids or GtidSet())
    if not first <= start_set:
        lost = first - start_set
        raise _purged(f"{lost.count} transactions that are not in the set: {lost.shown()}", place)

    def before_its_end(name: str) -> bool:
        """Whether a file begins before the last transaction of the set. Transactions without a GTID may follow that one
        in the same file, so a file that begins with the whole set may be too late."""
        before = purged | (starts[name].gtids or GtidSet())
        return before <= start_set and before != start_set

    file = last_fitting(files, before_its_end) or files[0]
    before = _Numbers(purged | (starts[file].gtids or GtidSet()))
    stopped: ScannedTransaction | None = None
    end = BinlogPosition(file, 4)
    for transaction in read_transactions(source, file):
        if not isinstance(transaction.gtid, str) or transaction.gtid not in start_set:
            stopped = transaction
            break
        before.add(transaction.gtid)
        end = transaction.end
    later = start_set - before.set()
    if later and stopped is not None:
        raise ConfigError(
            f"source.start.gtid is not a set that the server's binlog passes through: {later.count} of its GTIDs "
            f"({later.shown()}) come after {stopped.begin}, where the transaction "
            f"{stopped.gtid or 'without a GTID'} begins, which is not in the set",
            place=place,
            remedy="Use the set of a dump or backup of this server (gtid_executed at one moment), or a file and "
            "position.",
        )
    return Located(end if stopped is None else stopped.begin, str(before.set()))


def after_gtid_position(
    source: SourceConfig, conn: Source, files: Sequence[str], start_position: MariadbPosition
) -> Located:
    """Returns the position of MariaDB's first transaction behind ``start_position``. A domain that it does not name is
    read from its first transaction on. ``files`` are the server's binlog files, oldest first.

    The position must be one that the server's binlog passes through. Raises ConfigError, SourceRefusedError,
    SourceUnavailableError.
    """
    place = f"source {place_of(source)}"
    starts = FileStarts(source)
    file = last_fitting(files, lambda name: all(gtid in start_position for gtid in starts[name].last_gtids or ()))
    if file is None:
        lost = [gtid for gtid in starts[files[0]].last_gtids or () if gtid not in start_position]
        raise _purged(f"transactions up to {', '.join(map(str, lost))}", place)
    seen = {(gtid.domain, gtid.server): gtid for gtid in starts[file].last_gtids or ()}
    stopped: ScannedTransaction | None = None
    end = BinlogPosition(file, 4)
    for transaction in read_transactions(source, file):
        gtid = transaction.gtid
        if not isinstance(gtid, MariadbGtid) or gtid not in start_position:
            stopped = transaction
            break
        seen[gtid.domain, gtid.server] = gtid
        end = transaction.end
    missing = [gtid for gtid in start_position if seen.get((gtid.domain, gtid.server)) != gtid]
    if missing:
        state = _binlog_state(conn)
        executed = [gtid for gtid in missing if gtid.number <= state.get((gtid.domain, gtid.server), 0)]
        unknown = [gtid for gtid in missing if gtid not in executed]
        if unknown:
            raise ConfigError(
                f"source.start.gtid names {', '.join(map(str, unknown))}, and the server's binlog has no such "
                f"transaction (gtid_binlog_state is {_shown_state(state)})",
                place=place,
                remedy="Check that source.url names the server that the position comes from, or one of its replicas "
                "that is as far and logs what it applies.",
            )
        where = "the binlog's end" if stopped is None else f"{stopped.begin}, where {stopped.gtid} begins"
        raise ConfigError(
            f"source.start.gtid is not a position that the server's binlog passes through: "
            f"{', '.join(map(str, executed))} comes after {where}, which is not before the position",
            place=place,
            remedy="Use the position of a dump or backup of this server, or a file and position.",
        )
    state_before = MariadbPosition.of_state(seen.values())
    return Located(end if stopped is None else stopped.begin, str(state_before))


def at_time(source: SourceConfig, conn: Source, files: Sequence[str], time: datetime) -> Located:
    """Returns the position of the first transaction whose commit time is ``time`` or later, by the server's clock.
    ``files`` are the server's binlog files, oldest first.

    The commit time is the one that captured changes have: on MariaDB the second in which the transaction's last
    statement began. The server's clock must not have been set back since the oldest file.

    Raises ConfigError for a time before the oldest file or after the server's clock, SourceRefusedError,
    SourceUnavailableError.
    """
    place = f"source {place_of(source)}"
    wanted_us = time_us(time)
    now_us = clock_and_position(conn).time_us
    if wanted_us > now_us:
        raise ConfigError(
            f"source.start.time is {iso_time_us(wanted_us)}, and the server's clock says {iso_time_us(now_us)}",
            place=place,
            remedy="Give a time that has passed, or write start: now.",
        )
    if not isinstance(conn, BinlogFiles) and not _has_gtid_events(conn):
        raise ConfigError(
            "source.start.time is given, and the binlog of MySQL before 5.7 without GTIDs does not tell where "
            "transactions begin",
            place=place,
            remedy="Give a file and a position.",
        )
    starts = FileStarts(source)
    # A file has everything that was committed before the next one was created, in whole seconds.
    file = last_fitting(files, lambda name: (starts[name].created_s + 1) * 1_000_000 <= wanted_us)
    if file is None:
        created_us = starts[files[0]].created_s * 1_000_000
        raise ConfigError(
            f"source.start.time is {iso_time_us(wanted_us)}, and the server's oldest binlog file, {files[0]}, was "
            f"begun at {iso_time_us(created_us)}: what was committed between the two is purged, or was never logged",
            place=place,
            remedy=f"Give a later time. {_EARLIEST}",
        )
    end = BinlogPosition(file, 4)
    for transaction in read_transactions(source, file):
        # MariaDB's times are whole seconds.
        seconds = isinstance(transaction.gtid, MariadbGtid)
        if transaction.time_us >= (wanted_us // 1_000_000 * 1_000_000 if seconds else wanted_us):
            return Located(transaction.begin)
        end = transaction.end
    return Located(end)


def in_transaction(source: SourceConfig, conn: Source, files: Sequence[str], position: BinlogPosition) -> Located:
    """Returns where the transaction begins in which a position lies; the position itself if it lies between two, or if
    the server's binlog does not tell where transactions begin. ``files`` are the server's binlog files."""
    if position.file not in files or not (isinstance(conn, BinlogFiles) or _has_gtid_events(conn)):
        return Located(position)  # the caller refuses a file that is not there
    for transaction in read_transactions(source, position.file):
        is_later = transaction.begin.file != position.file
        if is_later or transaction.begin.pos <= position.pos < transaction.end.pos:
            return Located(position if is_later else transaction.begin)
        if transaction.begin.pos > position.pos:
            return Located(transaction.begin)
    return Located(position)


def _has_gtid_events(conn: Connection) -> bool:
    """Whether each transaction begins with a GTID event, an anonymous one included."""
    version = server_version(conn)
    if "mariadb" in version.lower() or parse_version(version) >= (5, 7):
        return True
    return variables(conn, ("gtid_mode",)).get("gtid_mode", "OFF").upper() == "ON"


def _purged(what: str, place: str) -> SourceRefusedError:
    return SourceRefusedError(
        f"the server has purged binlog files that come after source.start.gtid; they held {what}",
        place=place,
        remedy=f"Load the tables again at a newer position, and keep binlogs longer. {_EARLIEST}",
    )


class FileStarts:
    """The starts of files, each read once."""

    def __init__(self, source: SourceConfig) -> None:
        self._source = source
        self._read: dict[str, FileStart] = {}

    def __getitem__(self, file: str) -> FileStart:
        if file not in self._read:
            self._read[file] = read_file_start(self._source, file)
        return self._read[file]


def last_fitting(files: Sequence[str], fits: Callable[[str], bool]) -> str | None:
    """Returns the last file that fits, if all before it fit and none after it; None if the first does not fit."""
    low, high = 0, len(files)  # the first `low` files fit; those from `high` on do not
    while low < high:
        middle = (low + high) // 2
        if fits(files[middle]):
            low = middle + 1
        else:
            high = middle
    return files[low - 1] if low else None


class _Numbers:
    """A growing set of GTIDs, to which one is added at a time."""

    def __init__(self, before: GtidSet) -> None:
        self._before = before
        self._added: dict[str, list[tuple[int, int]]] = {}

    def add(self, gtid: str) -> None:
        name, _, text = gtid.rpartition(":")
        number, runs = int(text), self._added.setdefault(name, [])
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))

    def set(self) -> GtidSet:
        return self._before | GtidSet(self._added)


def _binlog_state(conn: Source) -> dict[tuple[int, int], int]:
    """Returns the last number of each domain and server in MariaDB's binlog."""
    parts = filter(None, (executed_gtids(conn, "mariadb") or "").split(","))
    return {(gtid.domain, gtid.server): gtid.number for gtid in map(MariadbGtid.parse, parts)}


def _shown_state(state: dict[tuple[int, int], int]) -> str:
    return ",".join(f"{domain}-{server}-{number}" for (domain, server), number in state.items()) or "empty"

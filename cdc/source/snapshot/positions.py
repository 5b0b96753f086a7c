"""The two positions of the binlog between which a chunk is read, and the seqs that follow from them.

*low*: every transaction up to it is visible in the chunk. *high*: every transaction that is visible in the chunk ends
at or before it. Decision 0052 has the proof for each server; in short:

- **MariaDB**, InnoDB: ``START TRANSACTION WITH CONSISTENT SNAPSHOT`` fixes the binlog's position together with the
  engine's read view, and ``binlog_snapshot_position`` shows it. low = high.
- **MySQL with GTIDs** (5.7 and later): a transaction is in the binlog before it is visible. While it is between the
  two, its session owns its GTID. So the position is read first, then the owned GTIDs, and the read view is made when
  none of these is owned any more. Those that are still owned after a short wait are kept with the position
  (``pending``); :func:`low_seq` then stops before the first of them.
- **MySQL without GTIDs**: there is nothing to ask. Transactions count as visible that were committed, and stored, a
  minute before the chunk, provided that no session is in the middle of a commit that began before.
- high is read after the read view is made; for tables of engines without transactions, after the rows are read.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cdc.base.errors import IdentityError, RetryableError, SourceUnavailableError, StoreIncompleteError
from cdc.binlog.entry import Entries
from cdc.binlog.positions import FILE_SHIFT, MAX_OFFSET, BinlogPosition, make_seq
from cdc.source.connection import query, server_of
from cdc.source.server import Connection, ServerInfo, clock_and_position, current_position, variables
from cdc.store.reader.store import Store

Method = Literal["exact", "gtids", "margin"]

MARGIN_S = 60.0
"""MySQL without GTIDs: the age from which a transaction counts as visible."""
_PENDING_S = 2.0
"""The time that a read view waits for owned GTIDs."""
_COMMIT_S = 120.0
"""The time that a read view waits for an old commit on servers without GTIDs."""
_POLL_S = 0.005
_IDLE = frozenset({"Sleep", "Binlog Dump", "Binlog Dump GTID", "Daemon", "Delayed insert", "Register Slave", "Connect"})
_HARMLESS = (
    "sending",
    "sorting",
    "statistics",
    "creating sort",
    "copying",
    "writing to net",
    "executing",
    "user sleep",
)


@dataclass(frozen=True)
class LowMark:
    """The position up to which every transaction is visible in a chunk."""

    method: Method
    file: str
    pos: int
    pending: tuple[str, ...] = ()
    """``gtids``: GTIDs of transactions that may lie before the position without being visible."""
    time_us: int = 0
    """``margin``: the source's clock at the position, µs since 1970."""
    local_time_us: int = 0
    """``margin``: this machine's clock at the position, µs since 1970."""

    @property
    def position(self) -> BinlogPosition:
        return BinlogPosition(self.file, self.pos)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> LowMark:
        return cls(**{**fields, "pending": tuple(fields["pending"])})


@dataclass(frozen=True)
class Marks:
    """The positions of a chunk."""

    low: LowMark
    high: BinlogPosition


# ---------------------------------------------------------------- on the server


def method_of(conn: Connection, info: ServerInfo) -> Method:
    """Returns how low marks are found on this server."""
    if info.flavor == "mariadb":
        return "exact"
    mode = variables(conn, ("gtid_mode",)).get("gtid_mode", "OFF")
    # MySQL 5.6 gives up a GTID when it is written to the binlog, before the engine commits.
    return "gtids" if mode == "ON" and info.version_info >= (5, 7) else "margin"


def begin(conn: Connection, method: Method) -> Marks:
    """Begins a transaction with a read view, and returns its positions. Raises SourceUnavailableError if a commit on
    the source takes so long that nothing certain can be said."""
    if method == "exact":
        query(conn, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        rows = query(conn, "SHOW STATUS LIKE 'binlog\\_snapshot\\_%'")
        status = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
        position = BinlogPosition(status["binlog_snapshot_file"], int(status["binlog_snapshot_position"]))
        if not position.file:
            query(conn, "ROLLBACK")
            current_position(conn)  # raises if the server writes no binlog
            raise SourceUnavailableError("the server shows no binlog_snapshot_file", place=f"source {server_of(conn)}")
        return Marks(LowMark("exact", position.file, position.pos), position)
    low = _settled(conn) if method == "gtids" else _quiet(conn)
    query(conn, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    return Marks(low, current_position(conn))


def _settled(conn: Connection) -> LowMark:
    position = current_position(conn)
    waiting = owned_gtids(conn)
    end = time.monotonic() + _PENDING_S
    while waiting and time.monotonic() < end:
        time.sleep(_POLL_S)
        waiting &= owned_gtids(conn)
    return LowMark("gtids", position.file, position.pos, tuple(sorted(waiting)))


def owned_gtids(conn: Connection) -> set[str]:
    """Returns the GTIDs whose transactions are being executed or committed."""
    return parse_owned(str(query(conn, "SELECT @@GLOBAL.gtid_owned AS owned")[0]["owned"] or ""))


def parse_owned(text: str) -> set[str]:
    """Parses ``@@gtid_owned``: ``UUID:7#15:8#16, UUID2:tag:9#17``."""
    gtids: set[str] = set()
    source = ""
    for part in "".join(text.split()).split(","):
        tag = ""
        for step in part.split(":"):
            if re.fullmatch(r"[0-9a-fA-F-]{36}", step):
                source, tag = step.lower(), ""
            elif "#" in step:
                gtids.add(f"{source}:{tag}{step.partition('#')[0]}")
            elif step:
                tag = f"{step}:"
    return gtids


def _quiet(conn: Connection) -> LowMark:
    end = time.monotonic() + _COMMIT_S
    while True:
        local_us = time.time_ns() // 1000
        probe = clock_and_position(conn)
        slow = _old_commits(conn)
        if not slow:
            low = probe.position
            return LowMark("margin", low.file, low.pos, (), probe.time_us, local_us)
        if time.monotonic() > end:
            raise SourceUnavailableError(
                f"sessions have been committing for a minute ({', '.join(slow)}), so that it is not certain which "
                "transactions a snapshot would see",
                place=f"source {server_of(conn)}",
                remedy="Find out why they do not end (semi-synchronous replication, a slow disk), and try again.",
            )
        time.sleep(0.5)


def _old_commits(conn: Connection) -> list[str]:
    """Returns the sessions that may be in a commit of a transaction that is older than the margin."""
    old_commits = []
    for row in query(conn, "SHOW FULL PROCESSLIST"):
        state = str(row["State"] or "").lower()
        info = str(row["Info"] or "").lstrip().lower()
        if row["Command"] in _IDLE or int(row["Time"] or 0) < MARGIN_S - 5:
            continue
        if info.startswith(("select", "show")) or state.startswith(_HARMLESS):
            continue
        if str(row["User"]) == "system user" and state.startswith(("slave has read", "waiting for", "has read")):
            continue
        old_commits.append(f"{row['Id']} of {row['User']}: {row['State'] or row['Command']}")
    return old_commits


# ---------------------------------------------------------------- in the store


def high_seq(epoch: int, highs: Iterable[BinlogPosition]) -> int:
    """Returns H: the seq of the last position at which a chunk was read. The store must be complete up to it before the
    chunks are merged."""
    return max(_seq(epoch, high) for high in highs)


def _seq(epoch: int, position: BinlogPosition) -> int:
    return make_seq(epoch, position.file_number, min(position.pos, MAX_OFFSET))


def low_seq(reader: Store, epoch: int, lows: Sequence[LowMark], *, is_complete: bool = False) -> int:
    """Returns L: the largest seq such that every transaction up to it is visible in every chunk.

    Call it when the store is complete up to :func:`high_seq`. ``is_complete``: this is known, although the store's last
    transaction may lie before it, because events outside of transactions move a position too (MariaDB's
    BINLOG_CHECKPOINT). Otherwise raises StoreIncompleteError if the store ends before a position. Raises IdentityError
    if the store begins behind L, because transactions before its beginning may then be missing in both; RetryableError
    (begin the snapshot again) if a transaction that was being committed cannot be found in the store.
    """
    first = min(_seq(epoch, low.position) for low in lows)
    last = reader.last_seq() or 0
    begins = reader.beginning()
    ends_before = begins is None or max(last, begins.seq) < max(_seq(epoch, low.position) for low in lows)
    if begins is None or (ends_before and not is_complete):
        raise StoreIncompleteError(
            "the store does not reach the snapshot's positions yet",
            place=reader.place,
            remedy="Let `cdc capture` run, and try again.",
        )
    seq = min([first, *_uncertain(reader, epoch, lows)])
    if seq < max(begins.seq, reader.removed_seq()):
        raise IdentityError(
            "the store begins behind the snapshot's first position, so changes between the two are missing",
            place=reader.place,
            remedy="Take a new snapshot of the table.",
        )
    return seq


def _uncertain(reader: Store, epoch: int, lows: Sequence[LowMark]) -> Iterator[int]:
    """Yields seqs that L may not exceed, because a transaction behind them may not have been visible."""
    begins = reader.beginning()
    assert begins is not None  # low_seq has looked
    margins = [low for low in lows if low.method == "margin"]
    if margins:
        # The earliest chunk decides: what is old enough for it is old enough for the others.
        time_us, local_us = min(m.time_us for m in margins), min(m.local_time_us for m in margins)
        margin_us = int(MARGIN_S * 1_000_000)
        if begins.time_us > local_us - margin_us:
            raise _unsure("capture began less than a minute before the snapshot")
        for seq in (
            reader.find_by_commit_time(time_us - margin_us),
            reader.find_by_store_time(local_us - margin_us),
        ):
            if seq is not None:
                # The first entry may be the position of the beginning: what lies before it is older than the margin.
                yield max(seq - 1, begins.seq)
    for low in lows:
        if low.pending:
            yield from _before_pending(reader, epoch, low, begins.seq)


def _before_pending(reader: Store, epoch: int, low: LowMark, begin_seq: int) -> Iterator[int]:
    """Yields the seq before each transaction that may not have been visible in this chunk.

    MySQL waits at the end of a binlog file until the engines have committed everything in it. So such a transaction is
    in the file of the position, or behind the position; one file more is searched.
    """
    upto = _seq(epoch, low.position)
    first_file = max(0, low.position.file_number - 1)
    missing = {gtid.lower() for gtid in low.pending}
    for entries in reader.all_entries(make_seq(epoch, first_file, 0), upto):
        for gtid in sorted(missing):
            places = np.flatnonzero(_has_gtid(entries, gtid))
            if len(places):
                missing.discard(gtid)
                yield int(entries["seq"][places[0]]) - 1
    if missing and begin_seq >> FILE_SHIFT >= make_seq(epoch, first_file, 0) >> FILE_SHIFT:
        raise _unsure(f"the transaction {min(missing)} was being committed and is not in the store")


def _has_gtid(entries: Entries, gtid: str) -> npt.NDArray[np.bool_]:
    """Returns a mask of the entries of MySQL's transactions that have this GTID."""
    source, *tag, number = gtid.split(":")
    is_source = entries["gtid_source"] == np.void(uuid.UUID(source).bytes)
    is_tag = entries["gtid_tag"] == (tag[0].encode() if tag else b"")
    last, count = entries["gtid_number"].astype(np.int64), entries["gtid_count"].astype(np.int64)
    matches: npt.NDArray[np.bool_] = is_source & is_tag & (int(number) <= last) & (int(number) > last - count)
    return matches


def _unsure(why: str) -> RetryableError:
    return RetryableError(
        f"it is not certain that the snapshot saw every transaction before the store's beginning: {why}",
        remedy="Take the snapshot again.",
    )


def may_have_changed(reader: Store, table: str, low: int, high: int) -> bool:
    """Returns whether a transaction of the table (``db.table``) may lie behind ``low``, up to ``high``.

    A table without a key can be loaded only if there is none, because no row of the snapshot could be told from a row
    of the stream. Call it when the store is complete up to ``high``. The index alone answers, so a transaction of
    another table may count that shares the table's bit in it.
    """
    mask = reader.table_mask(table) if low < high else 0
    if not mask:
        return False
    bit = np.uint64(mask)
    return any(bool((entries["table_mask"] & bit).any()) for entries in reader.all_entries(low, high))

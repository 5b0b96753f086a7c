"""Proves that the source still has the history that the store was captured from.

A binlog position proves little: after RESET, after a restored backup or on a rebuilt server, the same file name and
offset stand for other transactions. So at every connect, before anything new is stored:

1. The last GTID in the store must be in the server's executed set.
2. The binlog file of the last entry must have been created in the same second as the one that the store was captured
   from (the time in its format description), and an event must begin at the position where capture continues.
3. The last stored transaction is read again from the source and must consist of the same bytes
   (:mod:`~cdc.capture.reread`).

If the source has purged the file, the GTID is the only proof. If the store is lost, the marks that acks left in the
meta take its place (:func:`prove_acked`). ``docs/how-to/source.md`` explains this to operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from cdc.base.errors import CorruptStreamError, IdentityError
from cdc.binlog.entry import Entries, format_gtid
from cdc.binlog.positions import (
    FILE_SHIFT,
    MAX_OFFSET,
    BinlogPosition,
    format_seq,
    make_file_name,
    make_seq,
    split_file_name,
    split_seq,
)
from cdc.capture.reread import Reread, StoredTransaction, shown_time
from cdc.config import DestinationConfig, SourceConfig
from cdc.meta import HistoryMark, State
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import place_of
from cdc.source.dump import MAX_POSITION
from cdc.source.history import NoEventAtPositionError, executed_gtids, file_created, has_executed
from cdc.source.server import Flavor, Source
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.segment_header import read_segment_header, source_file_created_s

_SEGMENTS_SEARCHED = 16
"""The number of segments that are searched for a GTID. A source without GTIDs has none in any of them."""
REMEDY = (
    "The likely reasons: RESET MASTER or RESET BINARY LOGS was run, the server was restored from a backup, or another "
    "server answers at this address. Connect to the former server if it still exists; otherwise capture this one as a "
    "new destination with its own store, meta and target (see docs/how-to/source.md)."
)


@dataclass(frozen=True)
class Proof:
    """The result of a proof, for the log and for ``cdc check``."""

    proved: tuple[str, ...] = ()
    doubt: str | None = None
    """Why nothing could be proved; None if something was proved, or if nothing has been stored."""


# --- with a store


@dataclass(frozen=True)
class StoreEnd:
    """The end of the history that a store holds."""

    last: np.void
    """The newest entry, of a transaction or of a position."""
    gtid_entry: np.void | None
    """The newest entry that has a GTID."""
    transaction: StoredTransaction | None
    """The newest transaction that has bytes in the store and can be requested from the source."""


def prove_store(config: DestinationConfig, conn: Source, *, flavor: Flavor, base_name: str, files: set[str]) -> Proof:
    """Proves that the server has the history in the store, whose newest entry has a position in this server's binlog.
    ``files`` are the binlog files that the server still has.

    Raises IdentityError with both sides if it has another history; SourceUnavailableError, SourceRefusedError,
    DamagedError and StorageError if that cannot be determined.
    """
    end = read_store_end(config.store.path)
    if end is None:
        return Proof()
    return _StoreProof(config, conn, flavor, base_name, files, end).prove()


def read_store_end(store: Path) -> StoreEnd | None:
    """Reads the end of the store's history; None if the store is empty. Raises DamagedError, StorageError."""
    last: np.void | None = None
    gtid_entry: np.void | None = None
    transaction: StoredTransaction | None = None
    searched = 0
    for segment in reversed(layout.list_segments(store)):
        index = IndexFile(segment)
        if not len(index.entries):
            continue
        entries = index.verified(max(0, len(index.entries) - 1), len(index.entries))
        if last is None:
            last = _copy(entries, -1)
        number = None if gtid_entry is not None else next(index.from_end("gtid_count"), None)
        if number is not None:
            gtid_entry = _copy(index.verified(number, number + 1), 0)
        if transaction is None:
            transaction = _newest_transaction(segment, index)
        searched += 1
        if transaction is not None and (gtid_entry is not None or searched >= _SEGMENTS_SEARCHED):
            break
    if last is not None and transaction is not None and not _same_epoch(transaction.entry, last):
        transaction = None  # it has a position in the binlog of another server
    return None if last is None else StoreEnd(last, gtid_entry, transaction)


def _same_epoch(entry: np.void, other: np.void) -> bool:
    return split_seq(int(entry["seq"])).epoch == split_seq(int(other["seq"])).epoch


def _newest_transaction(segment: Path, index: IndexFile) -> StoredTransaction | None:
    """Returns the newest transaction of a segment at which a dump can begin: the request's offset has 32 bits."""
    entries = index.entries
    for at in index.from_end("length"):
        file = split_seq(int(entries["seq"][at])).file_number
        before = [split_seq(int(entries["seq"][at - 1]))] if at else []
        # The entry before may be a position entry of the previous binlog file.
        after = next((p.offset for p in before if p.file_number == file), None)
        after = read_segment_header(segment).pos if after is None else after
        if after <= MAX_POSITION:
            return StoredTransaction(segment, _copy(index.verified(at, at + 1), 0), after)
    return None


def _copy(entries: Entries, at: int) -> np.void:
    entry: np.void = np.array(entries)[at]
    return entry


class _StoreProof:
    """The three proofs for one store and one server."""

    def __init__(
        self,
        config: DestinationConfig,
        conn: Source,
        flavor: Flavor,
        base_name: str,
        files: set[str],
        end: StoreEnd,
    ) -> None:
        self._source, self._conn, self._flavor = config.source, conn, flavor
        self._segments = layout.list_segments(config.store.path)
        self._base, self._files, self._end = base_name, files, end
        self._executed: str | None = None

    def prove(self) -> Proof:
        proved = [proof for proof in (self._gtid(), self._transaction(), self._position()) if proof is not None]
        if proved:
            return Proof(tuple(proved))
        return Proof(
            doubt=f"the server's identity is not proved: it has purged {self._place(self._end.last).file}, and the "
            "store has no GTID"
        )

    def _gtid(self) -> str | None:
        entry = self._end.gtid_entry
        gtid = None if entry is None else format_gtid(entry)
        if entry is None or gtid is None:
            return None
        if isinstance(self._conn, BinlogFiles):  # the bytes of the last transaction prove more
            return None
        self._executed = executed_gtids(self._conn, self._flavor)
        if self._executed is None:
            return None
        if not has_executed(self._conn, self._flavor, gtid, self._executed):
            self._refuse(entry, f"the server has executed {_shown_gtids(self._executed)}")
        return f"GTID {gtid} is in its executed set"

    def _transaction(self) -> str | None:
        stored = self._end.transaction
        if stored is None or self._place(stored.entry).file not in self._files:
            return None
        end = self._place(stored.entry)
        created = self._created(stored.entry)
        for attempt in (1, 2):
            reread = Reread(self._source, stored, BinlogPosition(end.file, stored.after_pos))
            try:
                difference = reread.compare()
            except CorruptStreamError as error:
                if attempt == 1:  # the network may have caused it
                    continue
                difference = f"the server's bytes there are not valid events: {error.message}"
            if difference is None:
                difference = _other_file(end.file, reread.file_created, created)
            if difference is not None:
                self._refuse(stored.entry, difference)
            return f"the transaction that ends at {end} has the same {reread.compared} bytes"
        raise AssertionError("unreachable")

    def _position(self) -> str | None:
        """Checks the position where capture continues, and its file."""
        end = self._end
        at = self._place(end.last)
        is_transaction = end.transaction is not None and int(end.transaction.entry["seq"]) == int(end.last["seq"])
        if at.file not in self._files or at.pos > MAX_POSITION or is_transaction:
            return None
        created = self._created(end.last)
        try:
            created_there = file_created(self._source, BinlogPosition(at.file, max(4, at.pos)))
        except NoEventAtPositionError as error:
            self._refuse(end.last, error.message)
        difference = _other_file(at.file, created_there, created)
        if difference is not None:
            self._refuse(end.last, difference)
        same = "" if created is None else f"{at.file} was created in the same second, and "
        return f"{same}an event begins at {at}"

    def _created(self, entry: np.void) -> int | None:
        """Returns the Unix time at which the binlog file of an entry was created, as a segment captured from it says;
        None if retention has removed all such segments."""
        for segment in reversed(self._segments):
            start = layout.segment_start(segment)
            if start is not None and start >> FILE_SHIFT == int(entry["seq"]) >> FILE_SHIFT:
                return source_file_created_s(segment)
        return None

    def _place(self, entry: np.void) -> BinlogPosition:
        return _place(int(entry["seq"]), self._base)

    def _refuse(self, entry: np.void, server_has: str) -> NoReturn:
        gtid = format_gtid(entry)
        what = "a position" if not int(entry["length"]) else "a transaction"
        time_us = int(entry["commit_time_us"])
        facts = [f"ends at {self._place(entry)}"]
        facts += [f"GTID {gtid}"] if gtid is not None else []
        facts += [f"committed at {shown_time(time_us)}"] if time_us > 0 else []
        executed = (
            ""
            if self._executed is None or self._executed in server_has
            else (f"; the server has executed {_shown_gtids(self._executed)}")
        )
        raise IdentityError(
            f"the server's history is not the one that the store was captured from. The store holds {what} that "
            f"{', '.join(facts)}; {server_has}{executed}",
            place=f"source {place_of(self._source)}",
            remedy=REMEDY,
        )


# --- without a store


def prove_acked(
    source: SourceConfig, conn: Source, state: State, *, flavor: Flavor, base_name: str, sizes: dict[str, int]
) -> Proof:
    """Proves, if the store is lost, that the server has the transactions that were acked.

    A new store begins where the configuration says. Transactions at or below a reader's cursor then count as applied
    and are skipped; after RESET or a restored backup those are other transactions. So each ack keeps a mark of the
    history in the meta (:class:`~cdc.meta.state.HistoryMark`), and the newest one is compared here. ``sizes`` are those
    of the server's binlog files, in bytes.

    Raises IdentityError if the server has another history, SourceUnavailableError and SourceRefusedError if that
    cannot be determined.
    """
    cursor = max((subscription.position() for subscription in state.subscriptions.values()), default=0)
    if not cursor:
        return Proof()
    epoch = split_seq(cursor).epoch if state.source is None else state.source.epoch
    if split_seq(cursor).epoch == epoch:  # else the cursor is a position in the binlog of a former server
        _require_reached(source, cursor, base_name, sizes)
    marks = [subscription.mark for subscription in state.subscriptions.values() if subscription.mark is not None]
    mark = max(marks, key=lambda candidate: candidate.seq, default=None)
    if mark is None:
        return Proof(doubt=f"the server's identity is not proved: no ack has recorded a mark at the cursor {cursor}")
    return prove_mark(source, conn, mark, flavor, base_name, sizes, epoch=epoch)


def prove_mark(
    source: SourceConfig,
    conn: Source,
    mark: HistoryMark,
    flavor: Flavor,
    base_name: str,
    sizes: dict[str, int],
    *,
    epoch: int,
) -> Proof:
    """Proves that the server has the transaction of a mark. ``epoch`` is that of the server's binlog, whose files have
    these sizes in bytes. Raises as :func:`prove_acked`."""
    file = _acked_file(source, mark, base_name, sizes) if split_seq(mark.seq).epoch == epoch else None
    proofs = (_acked_gtid(source, conn, mark, flavor), file)
    proved = [proof for proof in proofs if proof is not None]
    if proved:
        return Proof(tuple(proved))
    return Proof(
        doubt=f"the server's identity is not proved: it has purged the last acked position, "
        f"{_place(mark.seq, base_name)}, which had no GTID"
    )


def _require_reached(source: SourceConfig, cursor: int, base_name: str, sizes: dict[str, int]) -> None:
    """Raises IdentityError if the server's binlogs end before the cursor."""
    newest = max(sizes, key=lambda name: split_file_name(name)[1])
    end = make_seq(split_seq(cursor).epoch, split_file_name(newest)[1], min(sizes[newest], MAX_OFFSET))
    if end < cursor:
        _refuse_acked(source, cursor, base_name, f"the server's binlogs end at {newest}:{sizes[newest]}")


def _acked_gtid(source: SourceConfig, conn: Source, mark: HistoryMark, flavor: Flavor) -> str | None:
    executed = executed_gtids(conn, flavor)
    if mark.gtid is None or executed is None:
        return None
    if not has_executed(conn, flavor, mark.gtid, executed):
        has = f"GTID {mark.gtid} was read, and the server has executed {_shown_gtids(executed)}"
        _refuse_acked(source, mark.seq, "", has)
    return f"GTID {mark.gtid} is in its executed set"


def _acked_file(source: SourceConfig, mark: HistoryMark, base_name: str, sizes: dict[str, int]) -> str | None:
    position = _place(mark.seq, base_name)
    if position.file not in sizes or position.pos > MAX_POSITION:
        return None
    try:
        created = file_created(source, BinlogPosition(position.file, max(4, position.pos)))
    except NoEventAtPositionError as error:
        _refuse_acked(source, mark.seq, base_name, error.message)
    difference = _other_file(position.file, created, mark.file_created_s, "that was read")
    if difference is not None:
        _refuse_acked(source, mark.seq, base_name, difference)
    return f"an event begins at {position}"


def _refuse_acked(source: SourceConfig, seq: int, base_name: str, server_has: str) -> NoReturn:
    where = str(_place(seq, base_name)) if base_name else format_seq(seq)
    raise IdentityError(
        "there is no store to compare with, and the server's history is not the one whose changes were read: "
        f"everything up to {where} was read; {server_has}",
        place=f"source {place_of(source)}",
        remedy=REMEDY,
    )


# --- parts of messages


def _place(seq: int, base_name: str) -> BinlogPosition:
    parts = split_seq(seq)
    return BinlogPosition(make_file_name(base_name, parts.file_number), parts.offset)


def _other_file(
    file: str, server_s: int, known_s: int | None, which: str = "that the store was captured from"
) -> str | None:
    """Describes the difference between two binlog files of one name by their creation times in Unix seconds; None if
    they are equal or one is unknown. ``which`` says which file ``known_s`` belongs to."""
    if known_s is None or server_s == known_s:
        return None
    server, captured = shown_time(server_s * 10**6), shown_time(known_s * 10**6)
    return f"the server's {file} was created at {server}, and the one {which} at {captured}"


def _shown_gtids(gtids: str) -> str:
    return "no GTID at all" if not gtids else gtids if len(gtids) <= 300 else f"{gtids[:300]}…"

"""Proves, when the store is lost, that the source still has the history that was acked before.

A new store begins where the configuration says. Transactions at or below a reader's cursor are then taken for applied
and passed over. After RESET, after a restored backup or on a rebuilt server those are other transactions. Each ack
keeps a mark of the history in the meta (:class:`~cdc.meta.state.HistoryMark`); the newest one is compared here.
"""

from __future__ import annotations

from typing import NoReturn

from cdc.capture.proof import WAY_OUT, Proof, other_file, shown_gtids
from cdc.config import SourceConfig
from cdc.errors import IdentityError
from cdc.meta import HistoryMark, State
from cdc.positions import MAX_OFFSET, BinlogPosition, format_seq, make_file_name, make_seq, split_file_name, split_seq
from cdc.source.connection import place_of
from cdc.source.dump import MAX_POSITION
from cdc.source.history import NoEventAtPositionError, executed_gtids, file_created, has_executed
from cdc.source.server import Connection, Flavor


def prove_cursor(
    source: SourceConfig, conn: Connection, state: State, *, flavor: Flavor, base_name: str, sizes: dict[str, int]
) -> Proof:
    """Prove that the server has what was acked. ``sizes``: of the binlog files that the server has, in bytes.

    Raises IdentityError where it has another history, SourceUnavailableError and SourceRefusedError where that cannot
    be told.
    """
    cursor = max((known.position() for known in state.subscriptions.values()), default=0)
    if not cursor:
        return Proof()
    _require_reached(source, cursor, base_name, sizes)
    marks = [known.mark for known in state.subscriptions.values() if known.mark is not None]
    mark = max(marks, key=lambda found: found.seq, default=None)
    if mark is None:
        return Proof(doubt=f"no ack has recorded what tells the history behind the cursor {cursor}: it was not proved")
    proved = [found for found in (_gtid(source, conn, mark, flavor), _file(source, mark, base_name, sizes)) if found]
    if proved:
        return Proof(tuple(proved))
    return Proof(doubt=f"the server has purged what was acked up to {_place(mark.seq, base_name)}, and it had no GTID")


def _require_reached(source: SourceConfig, cursor: int, base_name: str, sizes: dict[str, int]) -> None:
    """The server's binlogs must not end before the cursor."""
    newest = max(sizes, key=lambda name: split_file_name(name)[1])
    end = make_seq(split_seq(cursor).epoch, split_file_name(newest)[1], min(sizes[newest], MAX_OFFSET))
    if end < cursor:
        _refuse(source, cursor, base_name, f"the server's binlogs end at {newest}:{sizes[newest]}")


def _gtid(source: SourceConfig, conn: Connection, mark: HistoryMark, flavor: Flavor) -> str | None:
    executed = executed_gtids(conn, flavor)
    if mark.gtid is None or executed is None:
        return None
    if not has_executed(conn, flavor, mark.gtid, executed):
        has = f"GTID {mark.gtid} was acked, and the server has executed {shown_gtids(executed)}"
        _refuse(source, mark.seq, "", has)
    return f"GTID {mark.gtid} is in its executed set"


def _file(source: SourceConfig, mark: HistoryMark, base_name: str, sizes: dict[str, int]) -> str | None:
    position = _place(mark.seq, base_name)
    if position.file not in sizes or position.pos > MAX_POSITION:
        return None
    try:
        created = file_created(source, BinlogPosition(position.file, max(4, position.pos)))
    except NoEventAtPositionError as error:
        _refuse(source, mark.seq, base_name, error.message)
    difference = other_file(position.file, created, mark.file_created_s, "that was acked")
    if difference is not None:
        _refuse(source, mark.seq, base_name, difference)
    return f"an event begins at {position}"


def _place(seq: int, base_name: str) -> BinlogPosition:
    parts = split_seq(seq)
    return BinlogPosition(make_file_name(base_name, parts.file_number), parts.offset)


def _refuse(source: SourceConfig, seq: int, base_name: str, server_has: str) -> NoReturn:
    where = str(_place(seq, base_name)) if base_name else format_seq(seq)
    raise IdentityError(
        "the store is lost, and the server's history is not the one whose changes were acked: "
        f"everything up to {where} was acked; {server_has}",
        place=f"source {place_of(source)}",
        remedy=WAY_OUT,
    )

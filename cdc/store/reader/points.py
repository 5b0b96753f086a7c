"""Finds the transaction that a user names by a seq, a time, a GTID or a GTID set."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import numpy as np

from cdc.base.errors import UsageError
from cdc.base.units import iso_time_us, time_us
from cdc.binlog.entry import EntryFlag
from cdc.binlog.positions import format_seq, make_seq
from cdc.store.reader.store import Store

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_MYSQL = re.compile(rf"({_UUID})((?::(?:[A-Za-z_]\w*|\d+(?:-\d+)?))+)")
_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")
_PARTS = re.compile(r"(\d+):(\d+):(\d+)")
_SECOND_US = 1_000_000
FORMS = (
    "Give a seq (171798691844, or 0:10:4711 for epoch, binlog file and offset), a time (2026-11-21T10:00:00Z), or a "
    "GTID or GTID set."
)


class _Gtid(NamedTuple):
    """The last GTID of one source: of a server and tag for MySQL, of a domain and server for MariaDB."""

    source: bytes
    tag: bytes
    number: int
    mariadb: bool
    text: str


def find_point(reader: Store, text: str, remark: Callable[[str], None] | None = None) -> int:
    """Returns the seq up to which a reader has to apply changes to be at the point that ``text`` names: a seq itself;
    of a time, the last transaction that was committed before it; of a GTID, its transaction; of a GTID set, the last
    one of its transactions.

    Many servers write whole seconds as commit times, so nobody knows whether the store has all transactions of the
    second in which it begins. A caller that only shows changes gives ``remark``, which is told so; for others a time in
    that second, before the store begins, is an error.

    Raises UsageError if the text names no point, or one that the store does not have.
    """
    text = text.strip()
    parts = _PARTS.fullmatch(text)
    if parts is not None:
        return _stored(reader, make_seq(int(parts[1]), int(parts[2]), int(parts[3])))
    if text.isdigit() and int(text) < 1 << 63:
        return _stored(reader, int(text))
    gtids = _gtids(text)
    if gtids:
        return max(_find_gtid(reader, gtid) for gtid in gtids)
    return _find_time(reader, _time(text), remark)


def require_point(text: str) -> None:
    """Raises UsageError if the text names no point, whatever a store has."""
    text = text.strip()
    if not (text.isdigit() or _PARTS.fullmatch(text) or _gtids(text)):
        _time(text)


def _stored(reader: Store, seq: int) -> int:
    """Returns the seq. Raises UsageError if the store ends before it: the transactions up to it are not known yet."""
    begins = reader.beginning()
    end = max(reader.last_seq() or 0, 0 if begins is None else begins.seq)
    if seq > end:
        raise UsageError(
            f"{seq} ({format_seq(seq)}) lies behind the store's last transaction, {end} ({format_seq(end)})",
            place=reader.place,
            remedy="Give an earlier seq, or wait until capture has passed it.",
        )
    return seq


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is neither a seq, nor a time, nor a GTID set", remedy=FORMS) from None
    if time.tzinfo is None:
        raise UsageError(
            f"{text!r} does not say in which time zone it is",
            remedy="Add its offset: Z for UTC, or one like +01:00.",
        )
    return time


def _find_time(reader: Store, time: datetime, remark: Callable[[str], None] | None) -> int:
    moment_us = time_us(time)
    last = reader.last_entry()
    if last is None:
        raise UsageError("the store has no transaction yet", place=reader.place)
    first = reader.find_by_commit_time(moment_us)
    # An older transaction in the store proves that it has all that came since.
    oldest = oldest_entry(reader)
    if first == int(oldest["seq"]) or not oldest["commit_time_us"]:
        _require_nothing_before(reader, oldest, moment_us, remark)
    if first is None:
        if reader.complete_until_us() < moment_us:
            raise UsageError(
                f"the store is not known to have everything up to {iso_time_us(moment_us)}",
                place=reader.place,
                remedy="Wait until capture has passed that time, or give an earlier one.",
            )
        return int(last["seq"])
    return first - 1


def reaches_back_to_us(reader: Store) -> int | None:
    """Returns the commit time since which a store has all transactions; None if it is empty, or if nobody knows."""
    if not reader.exists():
        return None
    begins = reader.beginning()
    begins_us = 0 if begins is None else begins.time_us
    oldest_us = 0 if reader.first_seq() is None else int(oldest_entry(reader)["commit_time_us"])
    if not begins_us or reader.removed_seq():
        return oldest_us or None
    return min(begins_us, oldest_us or begins_us)


def oldest_entry(reader: Store) -> np.void:
    """Returns the first entry with a commit time, of a store that has any entry; without one, its very first entry.
    Positions that capture records without a transaction, as at the store's beginning, have no commit time."""
    first: np.void | None = None
    for entries in reader.all_entries():
        timed = np.flatnonzero(entries["commit_time_us"])
        if len(timed):
            committed: np.void = entries[timed[0]]
            return committed
        if first is None and len(entries):
            first = entries[0]
    assert first is not None
    return first


def _require_nothing_before(
    reader: Store, oldest: np.void, moment_us: int, remark: Callable[[str], None] | None
) -> None:
    """Raises UsageError if transactions between a time and the oldest one in the store were committed before the store
    began, or may have been removed by retention."""
    seq = int(oldest["seq"])
    # What retention removed was committed before the oldest entry that is left was stored.
    committed = int(oldest["commit_time_us"]) or int(oldest["store_time_us"])
    begins = reader.beginning()
    begins_us = 0 if begins is None else begins.time_us
    in_its_second = False
    if begins_us > moment_us:
        if remark is None or begins_us // _SECOND_US != moment_us // _SECOND_US:
            raise UsageError(
                f"the store begins on {iso_time_us(begins_us)}, after {iso_time_us(moment_us)}",
                place=reader.place,
                remedy="Give a later time.",
            )
        in_its_second = True
    if 0 < reader.removed_seq() < seq and moment_us <= committed:
        if remark is None or committed // _SECOND_US != moment_us // _SECOND_US:
            raise UsageError(
                f"retention has removed the transactions before {iso_time_us(committed)}, and some of them may have "
                f"been committed after {iso_time_us(moment_us)}",
                place=reader.place,
                remedy=f"Give a later time; or {seq - 1}, the seq before the oldest transaction that is kept.",
            )
        in_its_second = True
    if in_its_second and remark is not None:
        remark("the store begins within that second; what was committed in it before is not there")


def _gtids(text: str) -> list[_Gtid]:
    """Parses a GTID set: the last GTID of each source in it. Returns nothing if the text is none."""
    gtids: list[_Gtid] = []
    for part in text.replace("\n", "").split(","):
        part_text = part.strip()
        mariadb = _MARIADB.fullmatch(part_text)
        mysql = _MYSQL.fullmatch(part_text)
        if mariadb is not None:
            domain, server, number = (int(group) for group in mariadb.groups())
            source = domain.to_bytes(4, "little") + server.to_bytes(4, "little") + bytes(8)
            gtids.append(_Gtid(source, b"", number, mariadb=True, text=part_text))
        elif mysql is not None:
            source, tag = uuid.UUID(mysql[1]).bytes, ""
            for piece in mysql[2].lstrip(":").split(":"):
                if not piece[0].isdigit():
                    tag = piece.lower()
                    continue
                number = int(piece.rpartition("-")[2])
                shown = f"{mysql[1]}:{tag + ':' if tag else ''}{number}"
                gtids.append(_Gtid(source, tag.encode(), number, mariadb=False, text=shown))
        else:
            return []
    last: dict[tuple[bytes, bytes], _Gtid] = {}
    for gtid in gtids:
        newest = last.get((gtid.source, gtid.tag))
        if newest is None or newest.number < gtid.number:
            last[gtid.source, gtid.tag] = gtid
    return list(last.values())


def _find_gtid(reader: Store, gtid: _Gtid) -> int:
    source = np.frombuffer(gtid.source, dtype="V16")[0]
    for entries in reader.all_entries():
        is_mariadb = (entries["flags"] & int(EntryFlag.GTID_MARIADB)) != 0
        numbers, counts = entries["gtid_number"].astype(np.int64), entries["gtid_count"].astype(np.int64)
        matches = (
            (np.ascontiguousarray(entries["gtid_source"]) == source)
            & (entries["gtid_tag"] == gtid.tag)
            & (is_mariadb == gtid.mariadb)
            & (numbers - counts < gtid.number)
            & (gtid.number <= numbers)
            & (counts > 0)
        )
        if matches.any():
            return int(entries["seq"][int(np.flatnonzero(matches)[0])])
    last = reader.last_seq()
    raise UsageError(
        f"the store has no transaction {gtid.text}",
        place=reader.place,
        remedy="It may lie before the store's beginning, or capture has not read it yet"
        + (f" (it is at {format_seq(last)})." if last is not None else "."),
    )

"""Compares a store with the history that it was captured from, after any fault."""

from __future__ import annotations

from pathlib import Path

from cdc.binlog.constants import MAGIC
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.testing.source.history import History


def find_problems(store: Path, history: History, *, whole: bool = True, before: int | None = None) -> list[str]:
    """Returns a sentence for each problem of the store; an empty list if it has none.

    Each segment must consist of its header and its transactions, without gaps. Seqs must rise. The store must hold
    every transaction of the history once, byte for byte, and ``select`` must cover all of them. With ``whole=False``
    the store may end early, but not before the seq ``before``. Nothing may write to the store meanwhile.
    """
    problems: list[str] = []
    expected = history.expected()
    stored: dict[int, bytes] = {}
    last = -1
    for segment in list_segments(store):
        data = segment.read_bytes()
        at = _header_size(data)
        if at is None:
            problems.append(f"{segment.name} has no complete header")
            continue
        for entry in read_entries(segment):
            seq, offset, length = int(entry["seq"]), int(entry["offset"]), int(entry["length"])
            if seq <= last:
                problems.append(f"{segment.name}: seq {seq} comes after {last}")
            last = seq
            if not length:
                continue
            if offset != at:
                problems.append(f"{segment.name}: a transaction begins at {offset}, and the one before it ends at {at}")
            at = offset + length
            if seq in stored:
                problems.append(f"{segment.name}: duplicate seq {seq}")
            stored[seq] = data[offset:at]
        if at != len(data):
            problems.append(f"{segment.name}: {len(data) - at} bytes follow the last transaction")
    problems += _compare(stored, expected, whole=whole, before=before)
    problems += _selected(store, stored)
    return problems


def _header_size(data: bytes) -> int | None:
    """Returns the size of a segment's header: magic, format description and rotate event. None if it is incomplete."""
    if not data.startswith(MAGIC):
        return None
    at = len(MAGIC)
    for _ in range(2):
        at += int.from_bytes(data[at + 9 : at + 13], "little")
    return at if at <= len(data) else None


def _compare(stored: dict[int, bytes], expected: dict[int, bytes], *, whole: bool, before: int | None) -> list[str]:
    differences = [f"seq {seq} is not in the history" for seq in stored if seq not in expected]
    differences += [
        f"seq {seq} has other bytes" for seq, data in stored.items() if seq in expected and data != expected[seq]
    ]
    last = max(stored, default=-1)
    need = max(expected, default=-1) if whole else max(last, -1 if before is None else before)
    differences += [f"seq {seq} is missing" for seq in expected if seq <= need and seq not in stored]
    return differences


def _selected(store: Path, stored: dict[int, bytes]) -> list[str]:
    """Reads the store as a subscriber does, batch after batch, and compares the bytes with ``stored``."""
    if not stored:
        return []
    reader, after, data = StoreReader(store), 0, b""
    while (selection := reader.select(after, Limits(max_transactions=3))) is not None:
        for part in selection.ranges:
            with open(part.path, "rb") as file:
                file.seek(part.offset)
                data += file.read(part.length)
        if selection.last_seq <= after:
            return [f"select does not advance beyond seq {after}"]
        after = selection.last_seq
    if data != b"".join(stored.values()):
        return [f"select covers {len(data)} bytes, and the store holds {sum(map(len, stored.values()))}"]
    return []

"""What must hold of a store after whatever the source did, and which of it does not."""

from __future__ import annotations

from pathlib import Path

from cdc.binlog.constants import MAGIC
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.testing.source.history import History


def broken_in(store: Path, history: History, *, whole: bool = True, before: int | None = None) -> list[str]:
    """Sentences that name what is broken in the store of a history; none where all is well.

    Each segment is its head and its transactions' bytes, one right after another; seqs rise; every transaction of the
    history is there once, byte for byte; ``select`` covers all of it; and so nothing is larger than the stream.
    ``whole=False``: the store holds the history's beginning only; ``before``: that is everything with a seq up to it,
    at least. The store must not be written to meanwhile.
    """
    found: list[str] = []
    expected = history.expected()
    stored: dict[int, bytes] = {}
    last = -1
    for segment in list_segments(store):
        data = segment.read_bytes()
        at = _head_size(data)
        if at is None:
            found.append(f"{segment.name} has no whole head")
            continue
        for entry in read_entries(segment):
            seq, offset, length = int(entry["seq"]), int(entry["offset"]), int(entry["length"])
            if seq <= last:
                found.append(f"{segment.name}: seq {seq} comes after {last}")
            last = seq
            if not length:
                continue
            if offset != at:
                found.append(f"{segment.name}: a transaction begins at {offset}, and the one before it ends at {at}")
            at = offset + length
            if seq in stored:
                found.append(f"{segment.name}: seq {seq} is there twice")
            stored[seq] = data[offset:at]
        if at != len(data):
            found.append(f"{segment.name}: {len(data) - at} bytes behind the last transaction")
    found += _compare(stored, expected, whole=whole, before=before)
    found += _selected(store, stored)
    return found


def _head_size(data: bytes) -> int | None:
    """The magic, the format description and the rotate event that a segment begins with."""
    if not data.startswith(MAGIC):
        return None
    at = len(MAGIC)
    for _ in range(2):
        at += int.from_bytes(data[at + 9 : at + 13], "little")
    return at if at <= len(data) else None


def _compare(stored: dict[int, bytes], expected: dict[int, bytes], *, whole: bool, before: int | None) -> list[str]:
    found = [f"seq {seq} is not in the history" for seq in stored if seq not in expected]
    found += [f"seq {seq} has other bytes" for seq, data in stored.items() if seq in expected and data != expected[seq]]
    last = max(stored, default=-1)
    need = max(expected, default=-1) if whole else max(last, -1 if before is None else before)
    found += [f"seq {seq} is missing" for seq in expected if seq <= need and seq not in stored]
    return found


def _selected(store: Path, stored: dict[int, bytes]) -> list[str]:
    """Read everything as a subscriber does: batch after batch, each a list of byte ranges."""
    if not stored:
        return []
    reader, after, data = StoreReader(store), 0, b""
    while (selection := reader.select(after, Limits(max_transactions=3))) is not None:
        for part in selection.ranges:
            with open(part.path, "rb") as file:
                file.seek(part.offset)
                data += file.read(part.length)
        if selection.last_seq <= after:
            return [f"select does not move on behind seq {after}"]
        after = selection.last_seq
    if data != b"".join(stored.values()):
        return [f"select covers {len(data)} bytes, and the store holds {sum(map(len, stored.values()))}"]
    return []

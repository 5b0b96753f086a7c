"""Where a store begins, and why: a part of ``store.json`` (``docs/formats/store.md``).

A store that is begun anew behind a reader's cursor looks like any other one. The reader knows from this record that
what came before is not in it, and is refused instead of passing over the gap.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from cdc.durable import replace_file
from cdc.errors import DamagedError
from cdc.positions import make_file_name, split_seq
from cdc.store.formats import layout

Reason: TypeAlias = Literal["first start", "started again", "not recorded"]
"""``first start``: the destination had no store before. ``started again``: it had one, which is gone. ``not recorded``:
format version 1, or a store that was filled without capture; the first segment says where it begins."""


@dataclass(frozen=True)
class Beginning:
    """The store holds every transaction behind ``seq``, but for those that retention removed or that were given up."""

    seq: int
    """Exclusive."""
    file: str
    pos: int
    """The place in the source's binlog from which capture began to read."""
    gtid: str | None
    """The source's GTID set at that place, where it could tell."""
    time_us: int
    """When capture began, µs since 1970, by this machine's clock; 0: not known."""
    reason: Reason


def read_beginning(store: Path, base_name: str = "binlog") -> Beginning | None:
    """The recorded beginning, else the one that the first segment tells; None where the store has no segment yet.
    Raises DamagedError, VersionError, StorageError."""
    path = store / "store.json"
    document = layout.read_json(path)
    layout.check(store, document)
    found: Any = None if document is None else document.get("begins")
    if found is not None:
        return _parse(found, path)
    segments = layout.list_segments(store)
    if not segments:
        return None
    seq = layout.segment_start(segments[0])
    assert seq is not None, "only names that say where they begin are listed"
    parts = split_seq(seq)
    return Beginning(seq, make_file_name(base_name, parts.file_number), parts.offset, None, 0, "not recorded")


def record_beginning(store: Path, beginning: Beginning) -> None:
    """Durably, before anything becomes visible. The caller is the store's writer, and the store holds no transaction;
    a reason that is there stays, since a start that came to nothing is repeated."""
    path = store / "store.json"
    document: dict[str, Any] = layout.read_json(path)
    before = document.get("begins")
    reason = before["reason"] if before is not None else beginning.reason
    document["version"] = layout.STORE_VERSION
    document["begins"] = {**asdict(beginning), "reason": reason}
    replace_file(path, layout.render(document))


def _parse(found: Any, path: Path) -> Beginning:
    remedy = "Restore the file from a copy."
    known: dict[str, Any] = found if isinstance(found, dict) else {}
    numbers = all(isinstance(known.get(key), int) for key in ("seq", "pos", "time_us"))
    if not numbers or not isinstance(known.get("file"), str) or known.get("reason") not in get_args(Reason):
        raise DamagedError(f"begins: is not a store's beginning: {found!r}", place=str(path), remedy=remedy)
    reason: Reason = known["reason"]
    return Beginning(known["seq"], known["file"], known["pos"], known.get("gtid"), known["time_us"], reason)

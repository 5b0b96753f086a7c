"""``archive.json``: the store's own record of its archive, by which retention knows which segments are copied.

Only the process that copies the store (:mod:`cdc.copies.archive`) writes it. It also tells a store from another one
that writes to the same archive: the archive names the session of its writer, and so does the record.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cdc.base.errors import DamagedError
from cdc.disk.durable import replace_file
from cdc.store.formats.layout import read_document

FILE_NAME = "archive.json"
LOCK_NAME = "archive.lock"

_REMEDY = (
    "Remove it, and run `cdc archive claim DEST`: what was copied is found in the archive, and nothing is copied twice."
)


@dataclass(frozen=True)
class ArchiveRecord:
    """The state of a store's archive, as the store remembers it."""

    uri: str = ""
    """The folder of the destination in the archive; empty: nothing is known yet."""
    session: str = ""
    """The session of this store that the archive has as its writer, 32 hexadecimal digits."""
    claiming: str = ""
    """A session that is about to take the place of :attr:`session`; empty: none."""
    number: int = 0
    """The number of the newest state of the archive that this store has written or seen."""
    archived_seq: int = 0
    """The seq up to which the store's segments are in the archive without a gap."""
    segments: int = 0
    """The number of segments in the archive."""
    bytes: int = 0
    """Their bytes, with those of the indexes."""
    copied_us: int = 0
    """When the archive got its newest state, µs since 1970."""
    failing_since_us: int = 0
    """When the first of the tries failed that have failed since the last success; 0: the last one succeeded."""
    error: str = ""
    """The sentence of the last failure; empty: the last try succeeded."""


def read_record(store: Path) -> ArchiveRecord:
    """Returns the record of a store; an empty one if there is none. Raises DamagedError, VersionError, StorageError."""
    path = store / FILE_NAME
    document = read_document(path, _REMEDY)
    if document is None:
        return ArchiveRecord()
    fields = ArchiveRecord.__dataclass_fields__
    empty = asdict(ArchiveRecord())
    values = {name: value for name, value in document.items() if name in fields} if isinstance(document, dict) else {}
    if values.keys() != fields.keys() or any(type(values[name]) is not type(empty[name]) for name in fields):
        raise DamagedError("is not the record of an archive", place=str(path), remedy=_REMEDY)
    return ArchiveRecord(**values)


def write_record(store: Path, record: ArchiveRecord) -> None:
    """Writes the record durably. The caller holds the lock of the archive."""
    document = {"version": 1, **asdict(record)}
    replace_file(store / FILE_NAME, json.dumps(document, indent=1).encode() + b"\n")


def record_of(store: Path, uri: str) -> ArchiveRecord:
    """Returns the store's record of the archive at ``uri``; an empty one if it is that of another archive. Raises what
    :func:`read_record` raises."""
    record = read_record(store)
    return record if record.uri == uri else ArchiveRecord(uri=uri)

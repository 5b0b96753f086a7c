"""The documents of an archive (``docs/formats/archive.md``): its states, and the list of its segments.

::

    {store.archive.url}/{destination}/
        states/000000000042.json                 the numbered states; the newest one holds
        lists/{sha256}.json                      lists of segments, which states name
        files/{sha256}                           small files of the store and the meta, which states name
        segments/{store id}/NAME-{sha256}.binlog segments, which lists name; of the SHA-256 16 digits
        segments/{store id}/NAME-{sha256}.index  and their indexes

A state is created, never replaced. So of two stores that write the next state, one is refused, and the numbers tell who
came later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from cdc.base.documents import json_object, require_version
from cdc.base.errors import DamagedError
from cdc.base.validation import first_fault
from cdc.meta.envelope import checksum

FORMAT = "towpath-archive"
VERSION = 1
STATES = "states"
SCHEMAS = "store/schemas/"
"""The prefix of the names under which a state lists the definitions of tables: ``store/schemas/SEQ.json``."""
_REMEDY = (
    "Restore it from a version that the object store has kept; or remove it, so that the state before it holds, and "
    "run `cdc archive claim DEST` on the machine with the store."
)

How: TypeAlias = Literal["first", "started", "took over", "restored", "claimed"]
"""How a store became the writer. ``first``: the archive was empty. ``started``: it was the writer before. ``took
over``: it was a standby. ``restored``: it was made from the archive. ``claimed``: an operator decided so."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Ref(_Part):
    """An object of the archive."""

    object: str = Field(min_length=1)
    """Its name below the destination's folder."""
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SegmentRecord(_Part):
    """A segment in the archive."""

    name: str
    log: Ref
    index: Ref
    start_seq: int = Field(ge=0)
    """Exclusive: the seq at which the segment begins, as its name says."""
    last_seq: int = Field(ge=0)
    """The seq of its last entry; that of its beginning if it has none."""
    transactions: int = Field(ge=0)
    stored_us: int
    """When its last entry was stored, µs since 1970."""
    gap: bool = False
    """Whether transactions between the record before and this one are not in the archive."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the segment and its index."""
        return self.log.bytes + self.index.bytes


class SegmentList(_Part):
    """The segments of an archive, in order."""

    segments: tuple[SegmentRecord, ...] = ()


class Writer(_Part):
    """The store that writes to an archive."""

    store: str
    """32 hexadecimal digits that the store got when it first wrote."""
    session: str
    """32 hexadecimal digits, new each time a process begins to write."""
    host: str
    pid: int
    term: int = 0
    """The leadership epoch of the store; 0: it has none."""
    since: AwareDatetime
    how: How


class ArchiveTotals(_Part):
    """The extent of an archive."""

    segments: int = 0
    bytes: int = 0
    """The bytes of segments and indexes together."""
    first_seq: int = 0
    """Exclusive: where the oldest segment begins."""
    last_seq: int = 0
    """The seq of the last entry of the newest segment."""


class ArchiveState(_Part):
    """A state of an archive: everything that a restore needs."""

    destination: str
    number: int = Field(ge=1)
    time: AwareDatetime
    writer: Writer
    segments: Ref | None = None
    """The list of segments; None: there is none yet."""
    totals: ArchiveTotals = ArchiveTotals()
    files: Mapping[str, Ref] = {}
    """By path: ``store/tables.json``, ``store/schemas/SEQ.json``, ``meta/meta.json``, …"""


def state_name(number: int) -> str:
    """Returns the name of the object of a state."""
    return f"{STATES}/{number:012d}.json"


def render_state(state: ArchiveState) -> bytes:
    """Returns the content of the object of a state."""
    body = state.model_dump(mode="json")
    document = {"format": FORMAT, "version": VERSION, "checksum": checksum(body), "body": body}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def parse_state(data: bytes, place: str) -> ArchiveState:
    """Parses and checks the object of a state. Raises DamagedError, VersionError."""
    document = json_object(data, place, _REMEDY)
    if document.get("format") != FORMAT:
        raise DamagedError("is not the state of an archive", place=place, remedy=_REMEDY)
    require_version(document.get("version"), VERSION, place)
    body = document.get("body")
    if document.get("checksum") != checksum(body):
        raise DamagedError("its checksum is wrong", place=place, remedy=_REMEDY)
    try:
        return ArchiveState.model_validate_json(json.dumps(body))
    except ValidationError as error:
        raise DamagedError(first_fault(error, whole="the state"), place=place, remedy=_REMEDY) from None


def render_list(segments: SegmentList) -> bytes:
    """Returns the content of the object of a list of segments."""
    return segments.model_dump_json().encode() + b"\n"


def parse_list(data: bytes, place: str) -> SegmentList:
    """Parses a list of segments, whose SHA-256 was compared. Raises DamagedError."""
    try:
        return SegmentList.model_validate_json(data)
    except ValidationError as error:
        raise DamagedError(f"is not a list of segments: {first_fault(error)}", place=place) from None


def totals_of(segments: tuple[SegmentRecord, ...]) -> ArchiveTotals:
    """Returns the extent of a list of segments."""
    if not segments:
        return ArchiveTotals()
    size = sum(segment.size_bytes for segment in segments)
    return ArchiveTotals(
        segments=len(segments), bytes=size, first_seq=segments[0].start_seq, last_seq=segments[-1].last_seq
    )


def schema_seqs(state: ArchiveState) -> list[int]:
    """Returns the seqs of the definitions of tables that a state names."""
    return [int(name.removeprefix(SCHEMAS)[:-5]) for name in state.files if name.startswith(SCHEMAS)]


def after_last_gap(segments: tuple[SegmentRecord, ...]) -> tuple[SegmentRecord, ...]:
    """Returns the newest segments that follow one another without a gap."""
    for number in range(len(segments) - 1, 0, -1):
        if segments[number].gap:
            return segments[number:]
    return segments

"""The JSON files of a snapshot: its description, and a record of each chunk (``docs/formats/snapshot.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from cdc.binlog.positions import BinlogPosition
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.source.snapshot.keys import Key, PagingKey
from cdc.source.snapshot.parts import PartRecord
from cdc.source.snapshot.positions import LowMark, Method

FORMAT = "towpath-snapshot"
FORMAT_VERSION = 3
"""Version 2 added ``columns``, version 3 ``part``; a snapshot of a whole table is written as version 1, and so are the
other files."""
_WHOLE_VERSION, _COLUMNS_VERSION, _PART_VERSION = 1, 2, 3


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Segment(_Part):
    """A range of keys that one connection reads, chunk after chunk."""

    after: Key | None = None
    """Exclusive; null: from the first row on."""
    upto: Key | None = None
    """Inclusive; null: to the last row."""


class SnapshotInfo(_Part):
    """``snapshot.json``: the table, the server and the settings under which every chunk is read."""

    format: Literal["towpath-snapshot"] = "towpath-snapshot"
    version: int = _WHOLE_VERSION
    destination: str
    db: str
    name: str
    server_uuid: str
    epoch: int = Field(ge=0)
    engine: str
    method: Method
    """The way in which low marks are found."""
    has_row_metadata: bool
    """Whether the server's table maps hold the members of ENUM and SET."""
    definition: TableSchema
    """The table as information_schema described it before the first chunk, and after each."""
    key: tuple[str, ...]
    """The source's names of the columns that identify a row; empty: none, so the chunk must be exact."""
    index: str | None
    """The unique index in whose order the table is read; null: in one piece."""
    index_columns: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    """The source's names of the columns that are read beside the key; null: all of them."""
    part: PartRecord | None = None
    """The rows that are read; null: all of them."""
    policies: dict[str, str]
    """The column policies that are applied in the files, by the source's name in lower case."""
    values: dict[str, Any]
    """The value policies: the fields of :class:`~cdc.decode.ValuePolicies`."""
    chunk_rows: int = Field(ge=1)
    estimated_rows: int = Field(ge=0)
    row_bytes: int = Field(ge=0)
    """Mean size of a row by the table's statistics; 0: not known."""
    segments: tuple[Segment, ...]

    @model_serializer(mode="wrap")
    def _without_absent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = write(self)
        return {key: value for key, value in fields.items() if key not in ("columns", "part") or value is not None}

    @property
    def table(self) -> str:
        """``db.table``."""
        return f"{self.db}.{self.name}"

    def of_columns(self, names: Sequence[str]) -> SnapshotInfo:
        """Returns the description of a snapshot that reads the key and these columns alone."""
        return self.model_copy(update={"columns": tuple(names), "version": _COLUMNS_VERSION})

    def of_part(self, part: PartRecord) -> SnapshotInfo:
        """Returns the description of a snapshot that reads the rows of a part alone."""
        update: dict[str, Any] = {"part": part, "version": _PART_VERSION}
        condition = part.sql(self.definition)
        if condition is not None:
            update["estimated_rows"] = 0  # those of the whole table tell nothing
            if self.index is not None and not part.narrows(self.index_columns[0], self.definition):
                update |= {"index": None, "index_columns": ()}  # the server chooses a better one
        return self.model_copy(update=update)

    @property
    def condition(self) -> str | None:
        """The SQL condition by which the server chooses rows; None: all of them."""
        return None if self.part is None else self.part.sql(self.definition)

    @property
    def is_transactional(self) -> bool:
        """Whether a read view shows the same rows from beginning to end."""
        return self.engine.lower() == "innodb"

    @property
    def paging(self) -> PagingKey | None:
        """The key by which the table is read in chunks; None: in one piece."""
        if self.index is None:
            return None
        schemas: dict[str, ColumnSchema] = {column.name: column for column in self.definition.columns}
        return PagingKey(self.index, tuple(schemas[name] for name in self.index_columns))


class PositionRecord(_Part):
    """A position in the source's binlog."""

    file: str
    pos: int = Field(ge=0)

    def value(self) -> BinlogPosition:
        return BinlogPosition(self.file, self.pos)


class LowRecord(PositionRecord):
    """A chunk's low mark."""

    method: Method
    pending: tuple[str, ...] = ()
    time_us: int = 0
    local_time_us: int = 0

    def mark(self) -> LowMark:
        return LowMark(self.method, self.file, self.pos, self.pending, self.time_us, self.local_time_us)


class Loaded(_Part):
    """``loaded.json``: the snapshot was loaded into the table."""

    format: Literal["towpath-snapshot"] = "towpath-snapshot"
    version: int = _WHOLE_VERSION
    low_seq: int
    """The snapshot and every change of the table after this seq make the table."""
    high_seq: int
    """The position at which the table equalled the source."""


class ChunkRecord(_Part):
    """``chunk-SSS-NNNNNN.json``: a chunk that was read. It is written after the rows."""

    version: int = _WHOLE_VERSION
    segment: int = Field(ge=0)
    number: int = Field(ge=1)
    after: Key | None
    """The range of keys, as in :class:`Segment`."""
    upto: Key | None
    last: bool
    """Whether it is the segment's last chunk."""
    low: LowRecord
    high: PositionRecord
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    """Size of the Parquet file."""
    sha256: str
    """SHA-256 of the Parquet file, in hexadecimal."""
    null_dates: dict[str, int] = {}
    """Zero and impossible dates that became null, by column."""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The name of the record, without its suffix."""
        return chunk_name(self.segment, self.number)

    @property
    def file(self) -> str:
        """The name of the Parquet file. Whoever reads a chunk again writes another file, and never changes one."""
        return chunk_file(self.name, self.sha256)

    @property
    def is_exact(self) -> bool:
        """Whether the chunk shows the table at exactly one position."""
        return self.low.method == "exact" and (self.low.file, self.low.pos) == (self.high.file, self.high.pos)


def chunk_name(segment: int, number: int) -> str:
    return f"chunk-{segment:03d}-{number:06d}"


def chunk_file(name: str, sha256: str) -> str:
    return f"{name}-{sha256[:16]}.parquet"


@dataclass(frozen=True)
class ChunkRange:
    """A chunk that is to be read."""

    segment: int
    number: int
    after: Key | None
    upto: Key | None
    limit: int | None
    """The number of rows after which it ends; None: with its range."""
    last: bool = True
    """Without a limit: whether it is the segment's last chunk."""

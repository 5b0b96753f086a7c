"""Damages row events on purpose, with the column that each byte belongs to, and collects the decoder's answers."""

from __future__ import annotations

import os
import random
import resource
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.base.errors import CdcError, DamagedError, SourceRefusedError, UnsupportedError
from cdc.binlog.table_map import parse_table_map
from cdc.decode import DecodeStats
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.rows import rows_begin, step_over_image
from cdc.decode.layout import Images, TableLayout
from cdc.decode.reader import DecodeOptions, Decoder
from cdc.decode.row_events import RowEvents, whole_updates
from cdc.decode.transactions import Transactions
from tests.support.unit_decode import (
    KINDS,
    TYPED_TABLES,
    batches,
    changed,
    decode_typed,
    find_events,
    golden,
    schemas_of,
    typed,
)

TABLE_MAP, PARTIAL = 19, 39
INSERTS, UPDATES, DELETES = {23, 30}, {24, 31}, {25, 32}
ROW_EVENTS = INSERTS | UPDATES | DELETES | {PARTIAL}
EVERY_BYTE = bool(os.environ.get("TOWPATH_EVERY_BYTE"))
ROUNDS = int(os.environ.get("TOWPATH_FUZZ_ROUNDS", "40"))
"""The number of random changes for each golden file."""
ODD = (0, 1, 127, 128, 250, 251, 252, 253, 254, 255)
SLOW_S = 20.0
"""No damaged event of two kilobytes may take this long."""


@dataclass
class Outcomes:
    """The outcomes of decoding damaged events."""

    refused: int = 0
    differ: int = 0
    same: int = 0
    without_column: set[str] = field(default_factory=set)
    """Messages about a value that do not name its column."""

    @property
    def all(self) -> int:
        return self.refused + self.differ + self.same

    def add(self, other: Outcomes) -> None:
        self.refused += other.refused
        self.differ += other.differ
        self.same += other.same
        self.without_column |= other.without_column


class Target:
    """One row event of a golden table, to be changed and decoded by itself. Only a few columns are decoded at a time,
    because most of the time is spent once for each column."""

    def __init__(self, kind: str, table: str, pos: int, length: int) -> None:
        self.transactions = typed(kind)
        self.table = f"shop.{table}"
        self.pos, self.length = pos, length
        self.type = int(self.transactions.buf[pos + 4])
        self.event = self.transactions.buf[pos : pos + length].tobytes()
        self.layout = TableLayout.of(_table_map(self.transactions, pos), schemas_of(kind).tables[self.table])
        self.decoders: dict[tuple[str, ...] | None, dict[Images, Decoder]] = {}
        self.names = [column.name for column in self.layout.columns]

    @cached_property
    def rows_at(self) -> int:
        """The offset of the first row in the event."""
        buf = np.frombuffer(self.event, dtype=np.uint8)
        at = rows_begin(buf, 0, self.length - 4, self.type, len(self.names), np.zeros(k.ERR_SIZE, np.int64))
        return int(at)

    @cached_property
    def owner(self) -> list[int]:
        """For each byte of the event the column that it belongs to; -1 for headers, bitmaps and checksum."""
        owner = [-1] * self.length
        if self.type == PARTIAL:  # this kernel cannot read them: each byte may be any column's
            return owner
        buf = np.frombuffer(self.event, dtype=np.uint8)
        columns = self.layout.kernel_spec([]).arrays
        columns = columns._replace(spec=columns.spec.copy())
        columns.spec[:, k.SPEC_KEY] = 1
        at = self.rows_at
        while at < self.length - 4:
            places = np.zeros((len(self.names), 2), dtype=np.int64)
            totals = np.zeros(len(self.names), dtype=np.int64)
            err = np.zeros(k.ERR_SIZE, np.int64)
            spec, member_at, _, latin1 = columns
            at = int(
                step_over_image(buf, at, self.length - 4, spec, member_at, latin1, False, totals, True, places, err)
            )
            assert at > 0
            for column, (begin, end) in enumerate(places.tolist()):
                owner[begin:end] = [column] * (end - begin)
        return owner

    def around(self, at: int) -> tuple[str, ...] | None:
        """The column of a byte and some behind it; None for all."""
        column = self.owner[at]
        return None if column < 0 else tuple(self.names[column : column + 3])

    def decode(self, event: bytes, columns: tuple[str, ...] | None, images: Images) -> list[pa.RecordBatch]:
        """The event's rows; the checksum is not verified. Positions in messages are those in the file."""
        buf = np.concatenate([np.zeros(self.pos, np.uint8), np.frombuffer(event, dtype=np.uint8)])
        position = np.array([self.pos], dtype=np.int64)
        zero = np.zeros(1, dtype=np.int64)
        length = np.array([len(event)], dtype=np.int64)
        run = RowEvents(self.layout, buf, position, position, length, np.array([self.type], dtype=np.int64), zero, zero)
        if self.type == PARTIAL:
            run = whole_updates(run, self.transactions)
        decoders = self.decoders.setdefault(columns, {})
        if images not in decoders:
            decoders[images] = Decoder(
                self.transactions, self.layout, DecodeOptions(images=images, columns=columns), DecodeStats()
            )
        batches = []
        done = 0
        while done < len(run):
            batch, count = decoders[images].decode(run.slice(done, len(run)))
            batch.validate(full=True)
            batches.append(batch)
            done += count
        return batches

    @cache  # noqa: B019 - a target lives as long as its test
    def sound(self, columns: tuple[str, ...] | None, images: Images) -> list[pa.RecordBatch]:
        return self.decode(self.event, columns, images)

    def attempt(self, event: bytes, columns: tuple[str, ...] | None, images: Images, outcomes: Outcomes) -> None:
        """Decodes a changed event and notes the outcome."""
        before = self.sound(columns, images)  # first, so that no kernel is compiled inside the measured time
        began = time.perf_counter()
        try:
            batches = self.decode(event, columns, images)
        except CdcError as error:
            outcomes.refused += 1
            self._judge(error, outcomes)
        else:
            if batches and pa.Table.from_batches(batches).equals(pa.Table.from_batches(before)):
                outcomes.same += 1
            else:
                outcomes.differ += 1
        assert time.perf_counter() - began < SLOW_S

    def _judge(self, error: CdcError, outcomes: Outcomes) -> None:
        text = str(error)
        if isinstance(error, SourceRefusedError):  # a bitmap that says that columns are missing
            assert f"position {self.pos}" in text and self.table in text, text
            return
        assert isinstance(error, DamagedError | UnsupportedError), repr(error)
        assert f"{self.transactions.path}, row event at {self.pos}, " in text, text
        assert f"table {self.table}" in text, text
        if "column" not in text:
            outcomes.without_column.add(text)
        elif " column " in text.partition("table ")[2].partition(": ")[0]:
            named = text.partition(", column ")[2].partition(" ")[0]
            assert named in self.names, text


def _table_map(transactions: Transactions, pos: int) -> Any:
    """The table map before a row event."""
    at, length = max(place for place in find_events(transactions, {TABLE_MAP}) if place[0] < pos)
    return parse_table_map(transactions.buf[at : at + length].tobytes(), transactions.has_checksum)


def targets(kind: str, table: str, types: set[int]) -> list[Target]:
    """Row events of a golden table with every type, the large ones: those with a value in every column."""
    full_name = f"shop.{table}"
    targets_of_type = []
    for pos, length in find_events(typed(kind), types):
        if _table_map(typed(kind), pos).full_name == full_name and (length > 300 or (table == "old" and length > 70)):
            targets_of_type.append(Target(kind, table, pos, length))
    return targets_of_type


def first(kind: str, table: str, types: set[int]) -> Target:
    return targets(kind, table, types)[0]


# ---------------------------------------------------------------- the kinds of damage


def cuts(target: Target, step: int) -> Outcomes:
    """The event ends earlier: at every ``step``-th byte from the end of its fixed header on."""
    outcomes = Outcomes()
    for size in range(27, target.length - 4, step):
        for images in ("after", "both"):
            target.attempt(target.event[:size] + b"\0\0\0\0", None, images, outcomes)
    return outcomes


def flips(target: Target, step: int, values: int, dice: random.Random) -> Outcomes:
    """Every ``step``-th byte behind the fixed header becomes ``values`` other ones: a bit flipped, or an odd number."""
    outcomes = Outcomes()
    for at in range(27 + dice.randrange(step), target.length - 4, step):
        old = target.event[at]
        others = [old ^ 1 << bit for bit in range(8)] + [value for value in ODD if value != old]
        for value in dice.sample(others, min(values, len(others))):
            event = target.event[:at] + bytes([value]) + target.event[at + 1 :]
            # Of an update both images: else a change of the old row would show nowhere.
            images: Images = "both" if target.type in UPDATES | {PARTIAL} else dice.choice(("after", "both"))
            target.attempt(event, target.around(at), images, outcomes)
    return outcomes


def lengthened(target: Target, dice: random.Random) -> Outcomes:
    """Inserts and removes bytes, so that all bytes behind them are shifted."""
    outcomes = Outcomes()
    for _ in range(ROUNDS):
        at = dice.randrange(27, target.length - 4)
        more = dice.randbytes(dice.choice((1, 2, 8, 300)))
        target.attempt(target.event[:at] + more + target.event[at:], None, "both", outcomes)
        target.attempt(target.event[:at] + target.event[at + dice.randrange(1, 9) :], None, "both", outcomes)
    return outcomes


def random_changes(kind: str, seed: int, rounds: int) -> Outcomes:
    """Changes bytes anywhere in the table maps and row events of a file, which is then read as a whole."""
    dice = random.Random(f"{kind}{seed}")
    sources: list[tuple[Transactions, str | None]] = [(golden(kind), None)] if kind in KINDS else []
    if any(typed_kind == kind for typed_kind, _ in TYPED_TABLES):
        sources.append((typed(kind), kind))
    outcomes = Outcomes()
    for whole_file, with_types in sources:
        places = list(find_events(whole_file, ROW_EVENTS | {TABLE_MAP}))
        for _ in range(rounds):
            edits: list[tuple[int, int]] = []
            for _ in range(dice.choice((1, 1, 1, 2, 8))):
                pos, length = dice.choice(places)
                edits.append((pos + dice.randrange(19, length - 4), dice.choice((*ODD, dice.randrange(256)))))

            def change(buf: Any, edits: list[tuple[int, int]] = edits) -> None:
                for at, value in edits:
                    buf[at] = value

            images: Images = dice.choice(("after", "both"))
            damaged = changed(whole_file, change)
            began = time.perf_counter()
            message = None
            try:
                for batch in _read(damaged, with_types, dice, images):
                    batch.validate(full=True)
            except CdcError as error:
                message = str(error)
            outcomes.refused += message is not None
            outcomes.differ += message is None
            # A column that is read well, but in a collation that no server has, is told of a table, not of a place.
            told = message is None or str(whole_file.path) in message or "cannot be decoded" in message
            assert told, message
            assert time.perf_counter() - began < SLOW_S
    return outcomes


def _read(
    transactions: Transactions, kind: str | None, dice: random.Random, images: Images
) -> Iterator[pa.RecordBatch]:
    if kind is None:
        return batches(transactions, images=images, columns=None)
    return decode_typed(transactions, kind, dice.choice([t for k_, t in TYPED_TABLES if k_ == kind]), images=images)


# ---------------------------------------------------------------- all of it, in a process of its own


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def everything(seed: int) -> None:
    """Runs the whole corpus, and prints the outcomes for each table and the memory that was used."""
    dice = random.Random(seed)
    before = 0
    for kind, table in TYPED_TABLES:
        outcomes = Outcomes()
        insert = first(kind, table, INSERTS)
        outcomes.add(cuts(insert, 1 if EVERY_BYTE else 3))
        if not before:  # the kernels are loaded or compiled by now
            before = peak_bytes()
        outcomes.add(flips(insert, 1 if EVERY_BYTE else 3, 18 if EVERY_BYTE else 1, dice))
        for target in targets(kind, table, ROW_EVENTS - INSERTS)[: None if EVERY_BYTE else 2]:
            outcomes.add(cuts(target, 1 if EVERY_BYTE else 29))
            outcomes.add(flips(target, 1 if EVERY_BYTE else 13, 18 if EVERY_BYTE else 1, dice))
        outcomes.add(lengthened(insert, dice))
        sys.stdout.write(f"{kind} {table} {outcomes.refused} {outcomes.differ} {outcomes.same}\n")
    for kind in sorted({*KINDS, "mysql56"}):
        # Enough of them that the number of outcomes of each sort is far from what the test asks for.
        outcomes = random_changes(kind, seed, 4 * ROUNDS)
        sys.stdout.write(f"{kind} random {outcomes.refused} {outcomes.differ} {outcomes.same}\n")
    sys.stdout.write(f"memory {peak_bytes() - before} {pa.default_memory_pool().max_memory()}\n")


def with_checksum(event: bytes) -> bytes:
    """The event with its length and checksum corrected."""
    event = event[:9] + (len(event)).to_bytes(4, "little") + event[13:-4]
    return event + zlib.crc32(event).to_bytes(4, "little")

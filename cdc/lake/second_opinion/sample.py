"""Chooses the transactions of which a second opinion is asked.

In a store, transactions are taken at points that are spread over the segments. The place of each point is random, and
the seed is reported, so that the same store gives the same sample again. At each point the transactions of the table of
which fewest rows were compared so far are read, until the point's share of the rows is reached. Memory is bounded by
the size of the transactions that are read together, and time by a limit.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cdc.base.errors import CdcError, CutOffError
from cdc.base.patterns import exact
from cdc.batches.subscribers import make_filter
from cdc.binlog.entry import Entries, EntryFlag
from cdc.client import captured_tables, open_table_batches
from cdc.decode.reader import DEFAULT_OPTIONS, DecodeOptions, decode_transactions
from cdc.decode.transactions import TableHistory, Transactions, history_of, open_paths, open_range
from cdc.lake.second_opinion import ROWS
from cdc.lake.second_opinion.report import SecondOpinion
from cdc.lake.second_opinion.rows import BATCH_BYTES, RowComparison
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import Schemas
    from cdc.config import DestinationConfig

_POINTS = 40
"""Places of a store or a file at which transactions are read."""
_LONGEST_S = 60.0
"""No further transactions are read after this time."""
_RUN_BYTES = 16 << 20
"""Size of the transactions that are read together."""
_LARGEST_BYTES = 64 << 20
"""Larger transactions are left out: one that is encrypted, or at a server, is read into memory as a whole."""


def of_store(
    config: DestinationConfig, tables: Sequence[str] = (), rows: int = ROWS, seed: int | None = None
) -> SecondOpinion:
    """Decodes a sample of a destination's store twice: rows of these tables, or of all that are included. Values of
    columns that a policy hides are not reported. ``seed``: None for another sample each time. Raises what opening the
    store raises."""
    began = time.monotonic()
    result = SecondOpinion(random.SystemRandom().getrandbits(32) if seed is None else seed, rows)
    _StoreSample(config, tables, result).take(began + _LONGEST_S)
    result.seconds = time.monotonic() - began
    return result


def of_files(
    paths: Sequence[Path],
    table: str,
    options: DecodeOptions = DEFAULT_OPTIONS,
    schemas: Schemas | None = None,
    rows: int = ROWS,
    seed: int = 0,
) -> SecondOpinion:
    """Decodes a sample of a table's rows in binlog files, segments or stores twice. Only the seqs of ``options`` are
    used. Raises the errors of :func:`cdc.decode.read`, whose ``schemas`` these are."""
    began = time.monotonic()
    result = SecondOpinion(seed, rows)
    chance = random.Random(seed)
    files = [(opened.between(options.after_seq, options.upto_seq), path) for opened, path, _ in open_paths(paths)]
    for number, (transactions, path) in enumerate(files):
        history = history_of(path, table) if schemas is None else TableHistory.always(schemas.tables.get(table))
        share = -(-(rows - result.rows) // (len(files) - number))
        parts = min(_POINTS, len(transactions.entries)) if share < transactions.entries["row_events"].sum() else 1
        for part in _parts(transactions, parts, chance):
            if result.rows < rows and time.monotonic() < began + _LONGEST_S:
                _compare_part(result, part, table, history, -(-share // parts), path)
    result.seconds = time.monotonic() - began
    return result


def _parts(transactions: Transactions, parts: int, chance: random.Random) -> Iterator[Transactions]:
    """Yields the transactions in parts of equal length. If there are several, each begins at a random one of its
    own."""
    edges = np.linspace(0, len(transactions.entries), parts + 1).astype(int).tolist()
    for begin, end in itertools.pairwise(edges):
        start = chance.randrange(begin, end) if parts > 1 else begin
        yield replace(transactions, entries=transactions.entries[start:end])


def _compare_part(
    result: SecondOpinion, part: Transactions, table: str, history: TableHistory, share: int, path: Path
) -> None:
    """Compares the table's first ``share`` rows in a part of a file."""
    options = DecodeOptions(columns=(), target_bytes=BATCH_BYTES)
    seqs: set[int] = set()
    count = 0
    for batch in decode_transactions(part, table=table, options=options, history=history):
        seqs.update(batch.column("_seq").to_pylist())
        count += batch.num_rows
        if count >= share:
            break
    entries = part.entries[np.isin(part.entries["seq"], np.array(sorted(seqs), dtype=np.uint64))]
    numbers = history.at(entries["seq"])
    for number in np.unique(numbers).tolist():
        run = replace(part, entries=entries[numbers == number])
        share -= RowComparison(result, run, table, history.schema(number), lambda _: path.name, {}).compare(share)
        if share <= 0:
            return


class _StoreSample:
    """Takes the sample of a store."""

    def __init__(self, config: DestinationConfig, tables: Sequence[str], result: SecondOpinion) -> None:
        self._config, self._result = config, result
        self._chance = random.Random(result.seed)
        self._batches = open_table_batches(config)
        self._reader = self._batches.reader
        names = [name for name in captured_tables(config, self._reader) if not tables or name in tables]
        masks = {name: self._reader.table_mask(name) for name in names}
        self._masks = {name: mask for name, mask in masks.items() if mask}
        self._rows = dict.fromkeys(self._masks, 0)
        """The compared rows by table."""
        self._taken: dict[str, list[int]] = {name: [] for name in self._masks}
        """The seqs of the transactions that were read, by table."""

    def take(self, deadline: float) -> None:
        """Compares until the rows that were asked for are reached, each point was used twice, or time is up. Behind
        some points there may be fewer rows than their share."""
        points = self._points()
        for number, point in [*enumerate(points), *enumerate(points)]:
            missing = self._result.asked - self._result.rows
            if missing <= 0 or time.monotonic() > deadline:
                return
            entries = next(iter(self._reader.all_entries(point)), None)
            if entries is not None:
                self._compare_at(entries, -(-missing // (len(points) - number)))

    def _points(self) -> list[int]:
        """Seqs that are spread over the segments; the first one lies before all transactions."""
        last, removed = self._reader.last_seq() or 0, self._reader.removed_seq()
        starts = [max(start - 1, removed) for start in self._reader.segment_starts() if start <= last]
        if not starts:
            return []
        points = [starts[0]]
        for number in range(1, _POINTS):
            at = int((number + self._chance.random()) * len(starts) / _POINTS)
            end = starts[at + 1] if at + 1 < len(starts) else last
            points.append(self._chance.randrange(starts[at], max(end, starts[at] + 1)))
        return points

    def _compare_at(self, entries: Entries, share: int) -> None:
        """Compares rows of the table with the fewest compared ones among those that these entries name."""
        is_ddl = (entries["flags"] & int(EntryFlag.DDL)) != 0
        has_rows = (entries["length"] > 0) & (entries["row_events"] > 0) & ~is_ddl
        for table in sorted(self._masks, key=lambda name: (self._rows[name], self._chance.random())):
            is_ours = has_rows & ((entries["table_mask"] & np.uint64(self._masks[table])) != 0)
            is_ours &= ~np.isin(entries["seq"], np.array(self._taken[table], dtype=np.uint64))
            ours = entries[is_ours]
            if len(ours):
                is_small = int(ours["row_events"].sum()) <= share
                self._compare_run(ours[0 if is_small else self._chance.randrange(len(ours)) :], table, share)
                return

    def _compare_run(self, entries: Entries, table: str, share: int) -> None:
        """Compares the table's first rows in these transactions."""
        self._taken[table].append(int(entries["seq"][0]))
        if int(entries["length"][0]) > _LARGEST_BYTES:
            self._result.leave_out(table, "", f"transactions of more than {_LARGEST_BYTES >> 20} MiB")
            return
        rows, sizes = np.cumsum(entries["row_events"]), np.cumsum(entries["length"])
        count = max(1, min(int(np.searchsorted(rows, share)) + 1, int(np.searchsorted(sizes, _RUN_BYTES))))
        run = entries[:count]["seq"]
        self._taken[table] += run.tolist()
        policies = self._config.table_apply(table).columns
        hidden = {
            name: policy.kind for name, policy in policies.items() if policy.kind in ("drop", "null", "hash", "mask")
        }
        try:
            described = self._reader.schemas(int(run[0]))
            schema = None if described is None else described[1].tables.get(table)
            for path, offset, length in self._ranges(table, int(run[0]) - 1, int(run[-1])):
                opened = open_range(path, offset, length, self._masks[table]).between(0, None)
                file_of = self._reader.source_file
                compared = RowComparison(self._result, opened, table, schema, file_of, hidden).compare(share)
                self._rows[table] += compared
                share -= compared
                if share <= 0:
                    return
        except CutOffError:
            return  # retention has removed them meanwhile
        except CdcError as error:
            self._result.leave_out(table, "", str(error))

    def _ranges(self, table: str, after_seq: int, until_seq: int) -> Iterator[tuple[Path | str, int, int]]:
        """Yields the byte ranges with the table's transactions. Those on this machine are read where they are, and not
        staged."""
        if isinstance(self._reader, StoreReader):
            limits = Limits(1 << 62, until_seq=until_seq)
            selection = self._reader.select(after_seq, limits, make_filter(exact(table)))
            yield from () if selection is None else selection.ranges
            return
        with self._batches.next(table, after_seq, until_seq, whole=True) as manifest:
            for byte_range in () if manifest is None else manifest.ranges:
                yield byte_range.path, byte_range.offset, byte_range.length

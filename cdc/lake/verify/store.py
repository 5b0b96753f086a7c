"""The store's side: waits until it has a position, and finds the changes between a Delta table and the source."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cdc.base.errors import CutOffError, IdentityError, RetryableError, StoreIncompleteError
from cdc.base.log import get_logger
from cdc.batches.parking import job_lock
from cdc.batches.table_batches import batches_between
from cdc.binlog.positions import format_seq, make_seq, split_seq
from cdc.client import open_table_batches
from cdc.source.snapshot import positions

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.binlog.entry import Entries
    from cdc.config import DestinationConfig
    from cdc.lake.verify.source import SnapshotPosition
    from cdc.meta import Meta
    from cdc.source.snapshot.positions import LowMark

_POLL_S = 0.2
_log = get_logger(__name__)


class UnsureError(RetryableError):
    """It cannot be told whether a table is right; the message says why. A later verification may tell."""


@dataclass(frozen=True)
class Span:
    """The seqs between a Delta table and a snapshot of its source."""

    after_seq: int
    """The Delta table's applied position."""
    low_seq: int
    """Changes of the table after it may be missing in the snapshot. Below ``after_seq`` if even the Delta table has
    changes that may be missing."""
    high_seq: int
    """No later transaction is in the snapshot."""

    @property
    def is_exact(self) -> bool:
        """Whether the snapshot is known to have every change."""
        return self.low_seq >= self.high_seq


class StoreView:
    """A store, read for a verification."""

    def __init__(self, config: DestinationConfig, meta: Meta) -> None:
        self._config = config
        self._batches = open_table_batches(config, meta)
        self.reader = self._batches.reader

    def wait_for(self, high_seq: int, clock_us: int, wait_s: float, tick: Callable[[], object] = lambda: None) -> None:
        """Waits until the store has every transaction up to a position, which the source had at ``clock_us``.

        Raises StoreIncompleteError after ``wait_s``.
        """
        deadline = time.monotonic() + wait_s
        while (self.reader.last_seq() or 0) < high_seq and self.reader.complete_until_us() <= clock_us:
            if time.monotonic() >= deadline:
                raise self._incomplete(high_seq)
            tick()
            time.sleep(_POLL_S)

    def _incomplete(self, high_seq: int) -> StoreIncompleteError:
        last, capture = self.reader.last_seq() or 0, self.reader.capture_state()
        if capture is None or not capture.running:
            remedy = f"Capture is not running: start `cdc capture {self._config.name}`, then verify again."
        elif not capture.connected:
            remedy = "Capture has no connection to the source: verify again when it has, or look at its log."
        else:
            remedy = "Capture is behind: verify again later, or wait longer with --wait."
        return StoreIncompleteError(
            f"the store ends at {last} ({format_seq(last)}), and the source is at {high_seq} ({format_seq(high_seq)}), "
            "so the two cannot be compared",
            place=self._config.name,
            remedy=remedy,
        )

    def span(self, table: str, after_seq: int, high_seq: int, position: SnapshotPosition) -> Span:
        """Returns the seqs between a Delta table and a snapshot. Call it when the store reaches ``high_seq``.

        Raises UnsureError if the snapshot is older than the Delta table.
        """
        if after_seq > high_seq:
            raise UnsureError(
                f"the Delta table is at {after_seq} ({format_seq(after_seq)}), ahead of the source's snapshot",
                remedy="Verify again.",
            )
        mask = 0 if position.is_exact else self.reader.table_mask(table)
        if not mask:
            return Span(after_seq, high_seq, high_seq)
        bit = np.uint64(mask)
        for entries in self.entries(self._visible_seq(after_seq, high_seq, position.marks.low), high_seq):
            ours = entries["seq"][(entries["table_mask"] & bit) != 0]
            if len(ours):
                return Span(after_seq, int(ours[0]) - 1, high_seq)
        return Span(after_seq, high_seq, high_seq)

    def _visible_seq(self, after_seq: int, high_seq: int, low: LowMark) -> int:
        """Returns a seq up to which every transaction is in the snapshot."""
        epoch, last = split_seq(high_seq).epoch, self.reader.last_seq() or 0
        if last < make_seq(epoch, low.position.file_number, low.position.pos):
            # The store is complete, and has nothing between its end and the position.
            end = split_seq(last)
            low = replace(low, file=f"end.{end.file_number:06d}", pos=end.offset)
        try:
            visible = positions.low_seq(self.reader, epoch, [low])
        except (IdentityError, RetryableError) as error:
            _log.debug("all changes after the Delta table's position are compared one by one", reason=str(error))
            return after_seq
        # A commit that takes long on a server without GTIDs is not seen. What reached the Delta table is taken as done.
        return max(visible, after_seq) if low.method == "margin" else visible

    def entries(self, after_seq: int = 0, until_seq: int | None = None) -> Iterator[Entries]:
        """Returns the verified index entries in (after_seq, until_seq], many at a time."""
        return self.reader.all_entries(after_seq, until_seq)

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """A context in which :meth:`changes` may be read. Staged copies are made by one job for each table at a
        time."""
        with ExitStack() as stack:
            if self._config.store.stages_batches:
                stack.enter_context(job_lock(self._batches.meta, table))
            yield

    def changes(self, table: str, span: Span) -> Iterator[Manifest]:
        """Yields the changes of a table in a span as batches without DDL.

        Raises UnsureError if a DDL statement of the table lies in the span, or retention has removed changes in it.
        """
        try:
            for manifest in batches_between(self._batches, table, span.after_seq, span.high_seq, whole=True):
                if manifest.ddl and table in manifest.tables:
                    raise UnsureError(
                        "a DDL statement of the table is not applied yet",
                        remedy=f"Run `cdc apply {self._config.name}`, then verify again.",
                    )
                if table in manifest.tables and not manifest.ddl:
                    yield manifest
        except CutOffError as error:
            raise UnsureError(
                f"changes of the table that are not applied yet were removed by retention: {error.message}",
                remedy=f"Run `cdc snapshot {self._config.name} {table}`.",
            ) from error

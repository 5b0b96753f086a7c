"""The changes of one table, read from the store for a job: batches that nobody leases, acks or rolls back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from cdc.base.errors import IdentityError
from cdc.base.patterns import exact
from cdc.batches.manifest import BatchFiles, ByteRange, Manifest, build_manifest
from cdc.batches.stage import Stage
from cdc.batches.subscribers import make_filter
from cdc.meta import Meta, Subscription, open_meta
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.store.reader.reader import StoreReader
    from cdc.store.reader.store import Store


class TableChangeReader(Protocol):
    """The methods that :class:`TableBatches` and :class:`~cdc.client.batches.RemoteTableBatches` share."""

    meta: Meta

    @property
    def reader(self) -> Store: ...

    def next(
        self, table: str, after_seq: int, until_seq: int | None = None, *, whole: bool = False
    ) -> AbstractContextManager[Manifest | None]: ...


def batches_between(
    batches: TableChangeReader, table: str, after_seq: int, until_seq: int, *, whole: bool = False
) -> Iterator[Manifest]:
    """Yields the batches of a table in (``after_seq``, ``until_seq``], as :meth:`TableBatches.next` makes them. Staged
    copies of a batch are removed when the next one is asked for."""
    at = after_seq
    while at < until_seq:
        with batches.next(table, at, until_seq, whole=whole) as manifest:
            if manifest is None:
                return
            yield manifest
            at = manifest.last_seq


class TableBatches:
    """Batches of single tables, with batch id 0. They are as large as ``batch`` in the configuration allows; a DDL
    statement of the table is a batch of its own. Hold the table's job lock while you read them."""

    def __init__(
        self,
        config: DestinationConfig,
        meta: Meta | None = None,
        open_reader: Callable[[str], StoreReader] | None = None,
    ) -> None:
        """``open_reader`` returns the store for a base name of the source's files; by default the store of this machine
        alone. It is called once."""
        self._config = config
        self._open_reader = open_reader
        self._opened: StoreReader | None = None
        self.meta: Meta = open_meta(config) if meta is None else meta
        self._stage: Stage | None = None
        if config.store.stages_batches:
            assert config.store.stage is not None

            self._stage = Stage(config.store.stage, config.name, permissions=config.store.permissions)

    @property
    def reader(self) -> StoreReader:
        """The store. Raises IdentityError if nothing was captured yet."""
        source = self.meta.source()
        if source is None:
            raise IdentityError(
                "does not know which source the store belongs to",
                place=self.meta.place,
                remedy=f"Run `cdc capture {self._config.name}`, which binds it.",
            )
        if self._open_reader is None:
            return StoreReader(self._config.store.path, source.base_name)
        if self._opened is None:
            self._opened = self._open_reader(source.base_name)
        return self._opened

    @contextmanager
    def next(
        self, table: str, after_seq: int, until_seq: int | None = None, *, whole: bool = False
    ) -> Iterator[Manifest | None]:
        """Yields the table's next batch after ``after_seq``; None if there is none up to ``until_seq`` (inclusive).

        ``whole``: with all its transactions up to the next DDL statement, whatever their size. Staged copies are
        removed at the end of the block. Raises CutOffError if retention has removed transactions after ``after_seq``,
        DamagedError, StorageError.
        """
        limits, reader, pattern = self._config.batch, self.reader, exact(table)
        if whole:
            batch_limits = Limits(1 << 62, until_seq=until_seq)
        else:
            batch_limits = Limits(limits.max_bytes, limits.max_transactions, limits.max_row_events, until_seq=until_seq)
        selection = reader.select(after_seq, batch_limits, make_filter(pattern))
        if selection is None:
            yield None
            return
        source = self.meta.source()
        assert source is not None  # the reader asked for it
        schema_path = reader.schema_path(selection.last_seq)
        if self._stage is not None:
            staged_for = f"job-{hashlib.sha256(table.encode()).hexdigest()[:16]}"
            self._stage.remove(staged_for, [0])  # the copies of a job that was killed
            files = self._stage.copy(staged_for, 0, selection.ranges, schema_path)
        else:
            ranges = tuple(ByteRange(path=str(p), offset=offset, length=n) for p, offset, n in selection.ranges)
            files = BatchFiles(ranges, None if schema_path is None else str(schema_path))
        try:
            manifest = build_manifest(
                selection,
                files,
                destination=self._config.name,
                subscriber="apply",
                subscription=Subscription(acked_seq=after_seq, filter=pattern),
                gaps=(),
                server_uuid=source.of_seq(selection.last_seq).server_uuid,
                beginning=reader.beginning(),
            )
            yield manifest.model_copy(update={"batch": 0})
        finally:
            if self._stage is not None:
                self._stage.discard(files)
            reader.release(selection)

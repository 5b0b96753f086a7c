"""Verifies the tables of a destination: history, ledgers, then the rows of each table on both sides.

The order of steps makes the comparison valid while both sides are written to. First the version of the Delta table is
fixed, then the snapshot of the source is taken, then the store is awaited up to the snapshot's position. The Delta
table and the changes of the store after it must then add up to the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from cdc.base.errors import CdcError, IdentityError, UsageError
from cdc.base.log import get_logger
from cdc.base.targets import split_table
from cdc.base.units import iso_time
from cdc.base.validation import there_is
from cdc.client import open_batches, open_meta
from cdc.lake.runtime.failures import first_line
from cdc.lake.verify.buckets import Buckets
from cdc.lake.verify.columns import TableColumns, table_columns
from cdc.lake.verify.compare import BucketSum, DifferentKey, KeyedRow, Narrowing, ShownRow, add_sums, differing
from cdc.lake.verify.history import check_cursor, check_history
from cdc.lake.verify.ledgers import base_of, check_ledgers, table_history
from cdc.lake.verify.report import LONGEST_VALUE, ChecksumResult, Difference, TableReport, VerificationReport
from cdc.lake.verify.source import SourceSnapshot
from cdc.lake.verify.store import Span, StoreView, UnsureError
from cdc.meta import Meta, Subscription

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cdc.batches.manifest import Manifest
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.config import ApplyConfig, DestinationConfig
    from cdc.lake.verify.ledger import TableCommits
    from cdc.meta import SourceIdentity

SUBSCRIBER = "apply"
_ROWS_A_PASS = 500_000
"""Rows of differing buckets that are looked at together."""
_MOST_UNCERTAIN = 10_000
"""Keys that may be changed by transactions of which it is not known whether the snapshot has them."""
_ATTEMPTS = 5
_PARALLEL = 2
_log = get_logger(__name__)

Progress = Callable[[str], object]


@dataclass(frozen=True)
class Options:
    """The extent of a verification."""

    limit: int = 20
    """Differences that are looked for in each table; further ones are not printed."""
    wait_s: float = 60.0
    """Longest wait until the store has what the source had."""


class LakeRows(Protocol):
    """The rows of one Delta table in canonical form; :class:`cdc.lake.verify.lake.TableRows`."""

    def without_repeats(self) -> LakeRows: ...

    def sums(self, without: Sequence[str] = ()) -> dict[int, BucketSum]: ...

    def changed_sums(self, manifest: Manifest, without: Sequence[str] = ()) -> dict[int, BucketSum]: ...

    def changed_keys(self, manifest: Manifest, after_seq: int) -> set[str]: ...

    def rows(self, buckets: Sequence[int] = (), keys: Sequence[str] = ()) -> Iterator[KeyedRow]: ...

    def changed_rows(
        self, manifest: Manifest, buckets: Sequence[int] = (), keys: Sequence[str] = ()
    ) -> Iterator[KeyedRow]: ...

    def shown(self, keys: Sequence[str]) -> Iterator[ShownRow]: ...

    def has_unlogged_changes(self, after_seq: int, until_seq: int) -> bool: ...

    def version_faults(self) -> list[str]: ...


@dataclass(frozen=True)
class LakeFacts:
    """A Delta table at the version that is verified."""

    version: int
    position: int
    """Everything up to this seq is applied."""
    applied_seq: int
    mode: str
    columns: tuple[str, ...]
    later_columns: tuple[str, ...] = ()
    """Columns that were added after the table was created; a changelog has null in them in older rows."""
    kept: str = ""
    """The last statement that dropped partitions whose rows the table has kept; empty without any."""
    handle: Any = None


class LakeTables(Protocol):
    """The Delta tables of a destination; :class:`cdc.lake.verify.lake.SparkLake`."""

    def find(self, table: str) -> LakeFacts | None: ...

    def open(
        self, facts: LakeFacts, columns: TableColumns, buckets: Buckets, base: int
    ) -> AbstractContextManager[LakeRows]: ...


def verify(
    config: DestinationConfig,
    lake: Callable[[], LakeTables],
    tables: Sequence[str] = (),
    options: Options | None = None,
    progress: Progress = lambda _: None,
) -> VerificationReport:
    """Verifies these tables, or all. ``lake`` opens the lake; it is called when rows are to be compared.

    Raises UsageError for a table that the destination does not have, IdentityError if nothing was captured yet, and
    what reading meta and store raises. What goes wrong with one table is in its report.
    """
    began = time.monotonic()
    run = _Run(config, lake, options or Options(), progress)
    report = run.verify(tables)
    report.seconds = time.monotonic() - began
    return report


class _Run:
    def __init__(
        self, config: DestinationConfig, lake: Callable[[], LakeTables], options: Options, progress: Progress
    ) -> None:
        self._config, self._options, self._progress = config, options, progress
        self._open_lake = lake
        self._meta: Meta = open_meta(config)
        source = self._meta.source()
        if source is None:
            raise IdentityError(
                "nothing was captured yet, so there is nothing to verify",
                place=config.name,
                remedy=f"Run `cdc capture {config.name}` and `cdc apply {config.name}` first.",
            )
        self._source: SourceIdentity = source
        self._subscription: Subscription = self._meta.read().subscriptions.get(SUBSCRIBER) or Subscription()
        self._store = StoreView(config, self._meta)
        self._histories: dict[str, TableCommits] = {}

    def verify(self, tables: Sequence[str]) -> VerificationReport:
        report = VerificationReport(self._config.name)
        names = self._names(tables)
        self._progress("comparing the store with the source")
        report.history = check_history(
            self._config, self._source, self._store, self._options.wait_s, lambda: self._progress("waiting for capture")
        )
        self._progress("reading the ledgers")
        report.tables = [TableReport(name, self._config.table_apply(name).mode) for name in names]
        self._check_ledgers(report)
        self._lake = self._open_lake()
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="verify") as pool:
            list(pool.map(self._check_rows, report.tables))
        return report

    def _names(self, tables: Sequence[str]) -> list[str]:
        with SourceSnapshot(self._config, self._source) as snapshot:
            source_tables = snapshot.schemas(self._config)
        included = self._config.tables.includes
        names = {*source_tables, *(name for name in self._subscription.tables if included(*split_table(name)))}
        unknown = [name for name in tables if name not in names]
        if unknown:
            raise UsageError(
                f"the destination has no table {unknown[0]}",
                place=self._config.name,
                remedy=there_is(unknown[0], names),
            )
        return sorted(tables or names)

    # --- ledgers

    def _check_ledgers(self, report: VerificationReport) -> None:
        acked = open_batches(self._config).acked_manifests(SUBSCRIBER)
        beginning = self._store.reader.beginning()
        check_cursor(self._subscription, acked, report.history, begins=None if beginning is None else beginning.seq)
        # Apply may go on meanwhile. What was acked by now has its commits, and who was parked by now is known as such.
        self._subscription = self._meta.read().subscriptions.get(SUBSCRIBER) or self._subscription
        names = {*self._subscription.tables, *(table.table for table in report.tables)}
        for name in sorted(names):  # batches are joined over all tables
            try:
                history = table_history(self._config, name, self._subscription)
            except CdcError as error:
                for table in report.tables:
                    if table.table == name:
                        table.unknown.append(str(error))
                continue
            if history is not None:
                self._histories[name] = history
        results = check_ledgers(self._histories, acked, self._subscription)
        for table in report.tables:
            if table.table in results:
                table.ledger = results[table.table]

    # --- rows

    def _check_rows(self, report: TableReport) -> None:
        name = report.table
        parked = self._subscription.parked.get(name)
        if parked is not None:
            report.unknown.append(
                f"the table is parked since {iso_time(parked.since)}: {parked.reason}"
                + ("" if parked.due != "snapshot" else f" Run `cdc snapshot {self._config.name} {name}`.")
            )
        for attempt in range(1, _ATTEMPTS + 1):
            self._progress(f"comparing {name}")
            try:
                self._compare(report)
                return
            except _RetakeError as error:
                if attempt == _ATTEMPTS:
                    report.unknown.append(str(error))
            except CdcError as error:
                report.unknown.append(str(error))
                return
            except Exception as error:  # noqa: BLE001 - Spark, py4j and gRPC raise hundreds of types
                _log.debug("the comparison failed", table=name, exc_info=True)
                report.unknown.append(f"the rows could not be compared: {first_line(error)}")
                return

    def _compare(self, report: TableReport) -> None:
        facts = self._lake.find(report.table)  # before the snapshot, which must not be older
        if (
            facts is not None
            and report.table in self._subscription.tables
            and report.table not in self._subscription.parked
        ):
            # A batch without changes of its rows leaves no position in the table: an index, another table's statement.
            facts = replace(facts, position=max(facts.position, self._subscription.acked_seq))
        with SourceSnapshot(self._config, self._source) as snapshot:
            db, table = split_table(report.table)
            schema = snapshot.schema(db, table, self._config)
            report.checksums = ChecksumResult(seq=snapshot.high_seq, gtids=snapshot.position.gtids_before or None)
            if facts is None or schema is None:
                self._report_absence(report, facts, schema)
                self._require_no_ddl(report, facts, snapshot)
                return
            report.mode, report.delta_version, report.applied_seq = facts.mode, facts.version, facts.applied_seq
            apply = self._config.table_apply(report.table).model_copy(update={"mode": facts.mode})
            columns = self._columns(report, facts, schema, apply, is_old_mysql=snapshot.is_old_mysql)
            self._require_no_ddl(report, facts, snapshot)
            if columns is None:
                return
            snapshot.prepare(db, table, schema, columns)
            buckets = snapshot.buckets(db, table, schema, columns)
            history = self._histories.get(report.table)
            base = 0 if history is None else base_of(history)
            with self._lake.open(facts, columns, buckets, base) as rows, self._store.locked(report.table):
                _Table(self._store, self._options, snapshot, rows, columns, buckets, report, facts).compare()

    def _report_absence(self, report: TableReport, facts: LakeFacts | None, schema: TableSchema | None) -> None:
        if facts is None and schema is None:
            report.checksums.faults.append("neither the source nor the lake has the table")
        elif facts is None:
            pending = self._subscription.acked_seq < (self._store.reader.last_seq() or 0)
            if report.table in self._subscription.parked or pending:
                report.unknown.append("there is no Delta table yet")
            else:
                report.checksums.faults.append("there is no Delta table")
        elif self._config.table_apply(report.table).on_drop == "keep":
            report.checksums.ok = True
            report.checksums.excepted["*"] = "the source has dropped the table, and on_drop keeps it"
        else:
            report.checksums.faults.append("the source has no such table")

    def _require_no_ddl(self, report: TableReport, facts: LakeFacts | None, snapshot: SourceSnapshot) -> None:
        """Raises UnsureError if the columns or the tables themselves differ because a DDL statement is not applied
        yet."""
        if not report.checksums.faults or facts is None:
            return
        self._store.wait_for(snapshot.high_seq, snapshot.position.clock_us, self._options.wait_s)
        span = Span(facts.position, snapshot.high_seq, snapshot.high_seq)
        try:
            with self._store.locked(report.table):
                for _ in self._store.changes(report.table, span):
                    pass
        except UnsureError:
            report.checksums.faults.clear()
            raise

    def _columns(
        self, report: TableReport, facts: LakeFacts, schema: TableSchema, apply: ApplyConfig, *, is_old_mysql: bool
    ) -> TableColumns | None:
        """Returns the columns that both sides have; None if the table cannot be compared."""
        columns = table_columns(schema, apply, is_old_mysql=is_old_mysql)
        result = report.checksums
        lake_names = {name.lower() for name in facts.columns}
        expected = [column.lake for column in columns.all] + [column.lake for column in columns.left_out]
        missing = [name for name in expected if name.lower() not in lake_names]
        extra = [name for name in facts.columns if name.lower() not in {w.lower() for w in expected}]
        follows = getattr(apply, "schema_changes", "evolve") == "evolve"
        for names, where in ((missing, "the Delta table lacks"), (extra, "only the Delta table has")):
            for name in names:
                if follows:
                    result.faults.append(f"{where} the column {name}")
                else:
                    result.excepted[name] = f"{where} it, by schema_changes: {getattr(apply, 'schema_changes', '')}"
        later = {name.lower() for name in facts.later_columns} if facts.mode == "append" else set()
        for left_out in columns.left_out:
            result.left_out[left_out.lake] = left_out.reason
        for column in columns.all:
            if column.lake.lower() in later:
                result.left_out[column.lake] = "it was added later, and a changelog keeps null in its older rows"
        compared_names = lake_names - later
        kept, read = (
            tuple(column for column in sides if column.lake.lower() in compared_names)
            for sides in (columns.compared, columns.read)
        )
        lost = [column.lake for column in columns.keys if column not in kept]
        if lost or not kept:
            report.unknown.append(f"the rows cannot be told apart without the column {(lost or ['of the key'])[0]}")
            return None
        return replace(columns, compared=kept, read=read)


class _RetakeError(UnsureError):
    """The snapshot has to be taken again."""


@dataclass
class _Table:
    """The comparison of one table in one snapshot."""

    store: StoreView
    options: Options
    snapshot: SourceSnapshot
    lake: LakeRows
    columns: TableColumns
    buckets: Buckets
    report: TableReport
    facts: LakeFacts

    def compare(self) -> None:
        """Compares all rows. Raises UnsureError, StoreIncompleteError, _RetakeError."""
        db, table = split_table(self.report.table)
        result = self.report.checksums
        with ThreadPoolExecutor(1, thread_name_prefix="verify-source") as pool:
            reading = pool.submit(self.snapshot.sums, db, table, self.columns, self.buckets)
            try:
                self.store.wait_for(self.snapshot.high_seq, self.snapshot.position.clock_us, self.options.wait_s)
                span = self._span()
                if self.lake.has_unlogged_changes(span.after_seq, span.high_seq):
                    raise UnsureError(
                        "foreign keys may have changed its rows behind the Delta table's position, for which the "
                        "store has no changes",
                        place=f"table {self.report.table}",
                        remedy="Run `cdc apply`, then verify again.",
                    )
                uncertain = self._uncertain_keys(span)
                delta = self._delta_sums(self.lake, uncertain, span)
            except BaseException:
                self.snapshot.cancel()
                raise
            source = reading.result()
        self.snapshot.require_transactional(db, table)
        self.report.rows = sum(bucket.rows for bucket in source.values())
        result.total = sum(bucket.total for bucket in source.values())
        if uncertain:
            source = add_sums(source, self._source_sums(uncertain), -1)
        bad = differing(source, delta)
        if bad and self.columns.keys:
            lake = self.lake.without_repeats()
            once = self._delta_sums(lake, uncertain, span)
            if len(remaining := differing(source, once)) < len(bad):
                self.lake, delta, bad = lake, once, remaining
                result.remarks.append(
                    "the source has written the delete of a row twice in one transaction, as MySQL 9.7 does when a "
                    "cascade of foreign keys comes back to its first row; it counts once"
                )
        result.chunks = len({*source, *delta})
        for findings in self._findings(bad, uncertain, source, delta, span):
            room = self.options.limit - len(result.differences)
            result.differences += self._differences(findings[:room])
            if len(findings) > room or len(result.differences) >= self.options.limit:
                result.more = len(findings) > room or bool(bad)
                break
        if bad and not result.differences:
            result.faults.append(
                f"{len(bad)} of {result.chunks} buckets differ, and no row in them was found to differ"
            )
        result.faults += self.lake.version_faults()
        if bad and self.facts.kept:
            result.faults.append(
                "the Delta table keeps rows of partitions that the source has dropped (on_drop_partition: keep), the "
                f"last ones by {self.facts.kept}; they are among the rows that only the Delta table has"
            )
        result.ok = not result.differences and not result.faults

    def _delta_sums(self, lake: LakeRows, without: Sequence[str], span: Span) -> dict[int, BucketSum]:
        """Returns the checksums of the Delta table's buckets with the changes behind its position."""
        sums = lake.sums(without)
        for manifest in self.store.changes(self.report.table, span):
            sums = add_sums(sums, lake.changed_sums(manifest, without))
        return sums

    def _span(self) -> Span:
        if self.facts.position > self.snapshot.high_seq:
            raise _RetakeError("the Delta table is ahead of the source's snapshot", remedy="Verify again.")
        span = self.store.span(self.report.table, self.facts.position, self.snapshot.high_seq, self.snapshot.position)
        if span.low_seq < span.after_seq:
            raise _RetakeError(
                "a transaction that the Delta table has was still being committed on the source",
                remedy="Verify again.",
            )
        return span

    def _uncertain_keys(self, span: Span) -> list[str]:
        """Returns the keys of the changes of which it is not known whether the snapshot has them."""
        if span.is_exact:
            return []
        keys: set[str] = set()
        for manifest in self.store.changes(self.report.table, span):
            keys |= self.lake.changed_keys(manifest, span.low_seq)
        if keys and not self.columns.keys:
            raise _RetakeError(
                "the table has no key and was written to at the moment of the snapshot, so that its position is not "
                "exact",
                remedy="Verify it while less is written to it.",
            )
        if len(keys) > _MOST_UNCERTAIN:
            raise _RetakeError(
                f"{len(keys)} rows were written at the moment of the snapshot", remedy="Verify while less is written."
            )
        return sorted(keys)

    def _source_rows(self, keys: Sequence[str]) -> Iterator[tuple[str, int]]:
        db, table = split_table(self.report.table)
        buckets = sorted({self._bucket(key) for key in keys})
        return self.snapshot.rows(db, table, self.columns, self.buckets, buckets, keys)

    def _source_sums(self, keys: Sequence[str]) -> dict[int, BucketSum]:
        sums: dict[int, BucketSum] = {}
        for key, checksum in self._source_rows(keys):
            sums = add_sums(sums, {self._bucket(key): BucketSum(1, checksum)})
        return sums

    def _bucket(self, key: str) -> int:
        return self.buckets.of(key)

    # --- narrowing

    def _findings(
        self,
        bad: Sequence[int],
        uncertain: Sequence[str],
        source: dict[int, BucketSum],
        delta: dict[int, BucketSum],
        span: Span,
    ) -> Iterator[list[DifferentKey]]:
        """Yields the differing keys: among the uncertain ones, then in the differing buckets, some at a time."""
        db, table = split_table(self.report.table)
        has_key = bool(self.columns.keys)
        if uncertain:
            narrowing = Narrowing(has_key=has_key, low_seq=span.low_seq)
            narrowing.add_source(self._source_rows(uncertain))
            narrowing.add_delta(self.lake.rows(keys=uncertain))
            for manifest in self.store.changes(self.report.table, span):
                narrowing.add_changes(self.lake.changed_rows(manifest, keys=uncertain))
            yield narrowing.findings()
        reported = set(uncertain)
        for group in _groups(bad, source, delta):
            narrowing = Narrowing(has_key=has_key, low_seq=span.low_seq)
            narrowing.add_source(self.snapshot.rows(db, table, self.columns, self.buckets, group))
            narrowing.add_delta(self.lake.rows(buckets=group))
            for manifest in self.store.changes(self.report.table, span):
                narrowing.add_changes(self.lake.changed_rows(manifest, buckets=group))
            yield [finding for finding in narrowing.findings() if finding.key not in reported]

    # --- what people see

    def _differences(self, findings: Sequence[DifferentKey]) -> list[Difference]:
        if not findings:
            return []
        db, table = split_table(self.report.table)
        keys = [finding.key for finding in findings]
        buckets = sorted({self._bucket(key) for key in keys})
        source = _by_key(self.snapshot.shown(db, table, self.columns, self.buckets, buckets, keys))
        delta = _by_key(self.lake.shown(keys))
        return [self._difference(finding, source.get(finding.key), delta.get(finding.key)) for finding in findings]

    def _difference(
        self, finding: DifferentKey, source: list[ShownRow] | None, delta: list[ShownRow] | None
    ) -> Difference:
        first = (source or delta or [ShownRow(finding.key, 0, {})])[0]
        key = {column.lake: _short(first.values.get(column.lake, ("", None))[1]) for column in self.columns.keys}
        note = finding.note
        if not self.columns.keys:
            note = f"{len(finding.source)} times at the source, {len(finding.delta)} times in the Delta table"
        elif len(finding.delta) > 1:
            note = f"{len(finding.delta)} rows in the Delta table"
        in_source, in_delta = source[0] if source else None, delta[0] if delta else None
        if in_source is None and in_delta is None:
            note = note or "the row is in the store's changes only"
        values = _values(in_source, in_delta)
        return Difference(key, values[0], values[1], note)


def _values(
    source: ShownRow | None, delta: ShownRow | None
) -> tuple[dict[str, str | None] | None, dict[str, str | None] | None]:
    """Returns both rows as text. Columns that are equal have the same text, and those that differ have different ones,
    even if a server prints them alike."""
    if source is None or delta is None:
        source_texts, delta_texts = (
            None if row is None else {name: _short(text) for name, (_, text) in row.values.items()}
            for row in (source, delta)
        )
        return source_texts, delta_texts
    mine: dict[str, str | None] = {}
    theirs: dict[str, str | None] = {}
    for name, (piece, text) in source.values.items():
        other_piece, other_text = delta.values[name]
        mine[name], theirs[name] = _short(text), _short(other_text)
        if piece == other_piece:
            theirs[name] = mine[name]
        elif mine[name] == theirs[name]:
            mine[name], theirs[name] = f"{mine[name]} ({piece})", f"{theirs[name]} ({other_piece})"
    return mine, theirs


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… ({len(text)} characters)"


def _by_key(rows: Iterable[ShownRow]) -> dict[str, list[ShownRow]]:
    groups: dict[str, list[ShownRow]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    return groups


def _groups(bad: Sequence[int], source: dict[int, BucketSum], delta: dict[int, BucketSum]) -> Iterator[list[int]]:
    """Yields the buckets in groups that are not too large."""
    empty = BucketSum(0, 0)
    group: list[int] = []
    rows = 0
    for bucket in bad:
        size = max(source.get(bucket, empty).rows, delta.get(bucket, empty).rows)
        if group and rows + size > _ROWS_A_PASS:
            yield group
            group, rows = [], 0
        group.append(bucket)
        rows += size
    if group:
        yield group

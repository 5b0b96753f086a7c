"""Jobs as values: the arguments of what a Spark driver does, its execution, and the JSON form of both.

:func:`cdc.lake.pipeline.run` executes a job in this process, or sends it to a driver under spark-submit, where
:mod:`cdc.lake.serve` executes it. What a job does is imported when it is done, because it loads PySpark, and a process
that sends the job may have none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from pydantic import TypeAdapter

from cdc.batches.lease import Lease
from cdc.batches.manifest import TableResult
from cdc.lake.jobs.results import CatchUp, ReplayResult, SnapshotResult, TableAdoption, TableDiff, TableRemask
from cdc.lake.runtime.session import acquire
from cdc.lake.verify.report import VerificationReport

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.lake.delta.maintenance import Maintained
    from cdc.source.snapshot.progress import SnapshotProgress

ResultT = TypeVar("ResultT")
ProgressT = TypeVar("ProgressT")


class SparkJob(ABC, Generic[ResultT, ProgressT]):
    """A job of a Spark driver. Its fields are its arguments."""

    done: ClassVar[str]
    """The end of the job in the past tense, for messages: "the tables were compared"."""

    def arguments(self) -> dict[str, Any]:
        """Returns the fields as JSON."""
        return {**vars(self)}

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """Returns the job whose :meth:`arguments` these are."""
        return cls(**arguments)

    @abstractmethod
    def run(self, config: DestinationConfig, progress: Callable[[ProgressT], object]) -> ResultT:
        """Does the job in the session of this process. ``progress`` may be called from any thread."""

    @abstractmethod
    def types(self) -> tuple[TypeAdapter[ResultT], TypeAdapter[ProgressT]]:
        """Returns the adapters that convert the result and the progress to JSON and back."""


@dataclass(frozen=True)
class Merge(SparkJob[list[TableResult], None]):
    """The merge of the batch of a lease."""

    done = "the batch was merged"
    lease: Lease

    def arguments(self) -> dict[str, Any]:
        return {"lease": self.lease.as_dict()}

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        return cls(Lease.from_dict(arguments["lease"]))

    def run(self, config: DestinationConfig, progress: Callable[[None], object]) -> list[TableResult]:
        from cdc.lake.jobs.merge import merge

        return merge(config, self.lease)

    def types(self) -> tuple[TypeAdapter[list[TableResult]], TypeAdapter[None]]:
        return TypeAdapter(list[TableResult]), TypeAdapter(None)


@dataclass(frozen=True)
class Verify(SparkJob["VerificationReport", str]):
    """A comparison of tables with the source. ``tables``: all if it is empty; ``limit`` and ``wait_s``: see
    :class:`cdc.lake.verify.run.Options`."""

    done = "the tables were compared"
    tables: list[str]
    limit: int = 20
    wait_s: float = 60.0

    def run(self, config: DestinationConfig, progress: Callable[[str], object]) -> VerificationReport:
        from cdc.lake.verify.lake import SparkLake
        from cdc.lake.verify.run import Options, verify

        def lake() -> SparkLake:
            return SparkLake(config, acquire(config.spark).tables)

        return verify(config, lake, self.tables, Options(self.limit, self.wait_s), progress)

    def types(self) -> tuple[TypeAdapter[VerificationReport], TypeAdapter[str]]:
        return TypeAdapter(VerificationReport), TypeAdapter(str)


@dataclass(frozen=True)
class Snapshot(SparkJob["list[SnapshotResult]", "SnapshotProgress"]):
    """Snapshots of tables; see :func:`cdc.lake.jobs.snapshot.take_snapshots`. ``tables``: None for those that wait.
    ``keys``, ``where``: see :class:`cdc.lake.jobs.table_part.PartRequest`."""

    done = "the snapshots were taken"
    tables: list[str] | None = None
    whole: bool = False
    keys: str | None = None
    where: str | None = None

    def run(self, config: DestinationConfig, progress: Callable[[SnapshotProgress], object]) -> list[SnapshotResult]:
        from cdc.lake.jobs.snapshot import take_snapshots
        from cdc.lake.jobs.table_part import PartRequest

        part = PartRequest.of(self.keys, self.where)
        return take_snapshots(config, self.tables, progress=progress, whole=self.whole, part=part)

    def types(self) -> tuple[TypeAdapter[list[SnapshotResult]], TypeAdapter[SnapshotProgress]]:
        from cdc.source.snapshot.progress import SnapshotProgress

        return TypeAdapter(list[SnapshotResult]), TypeAdapter(SnapshotProgress)


@dataclass(frozen=True)
class Replay(SparkJob["list[ReplayResult]", "CatchUp"]):
    """A replay of tables; see :func:`cdc.lake.jobs.replay.replay`. Points are texts as
    :func:`cdc.store.reader.points.find_point` takes them. ``keys``, ``where``: see
    :class:`cdc.lake.jobs.table_part.PartRequest`."""

    done = "the tables were built again"
    tables: list[str]
    from_: str | None = None
    to: str | None = None
    into: str | None = None
    mode: str | None = None
    keys: str | None = None
    where: str | None = None

    def run(self, config: DestinationConfig, progress: Callable[[CatchUp], object]) -> list[ReplayResult]:
        from cdc.lake.jobs.replay import replay

        return replay(config, self, progress)

    def types(self) -> tuple[TypeAdapter[list[ReplayResult]], TypeAdapter[CatchUp]]:
        return TypeAdapter(list[ReplayResult]), TypeAdapter(CatchUp)


@dataclass(frozen=True)
class Remask(SparkJob["list[TableRemask]", "TableRemask"]):
    """A remask of tables; see :func:`cdc.lake.jobs.remask.remask`."""

    done = "the tables were rewritten"
    tables: list[str]
    vacuum: bool = False

    def run(self, config: DestinationConfig, progress: Callable[[TableRemask], object]) -> list[TableRemask]:
        from cdc.lake.jobs.remask import remask

        return remask(config, self.tables, vacuum=self.vacuum, progress=progress)

    def types(self) -> tuple[TypeAdapter[list[TableRemask]], TypeAdapter[TableRemask]]:
        return TypeAdapter(list[TableRemask]), TypeAdapter(TableRemask)


@dataclass(frozen=True)
class Adopt(SparkJob["TableAdoption", str]):
    """The takeover of a table of another tool; see :func:`cdc.lake.jobs.adopt.adopt`. ``tool``: one of
    :data:`cdc.lake.jobs.adopt_columns.Tool`; ``dropped``: columns that are dropped."""

    done = "the table was taken over"
    table: str
    tool: str
    dropped: list[str]
    dry_run: bool = False

    def run(self, config: DestinationConfig, progress: Callable[[str], object]) -> TableAdoption:
        from cdc.lake.jobs.adopt import adopt

        return adopt(config, self, progress)

    def types(self) -> tuple[TypeAdapter[TableAdoption], TypeAdapter[str]]:
        return TypeAdapter(TableAdoption), TypeAdapter(str)


@dataclass(frozen=True)
class Diff(SparkJob["TableDiff", None]):
    """A comparison of a table as of two points; see :func:`cdc.lake.jobs.diff.diff`. ``limit``: rows that are shown."""

    done = "the table was compared"
    table: str
    before: str
    after: str
    limit: int = 20

    def run(self, config: DestinationConfig, progress: Callable[[None], object]) -> TableDiff:
        from cdc.lake.jobs.diff import diff

        return diff(config, self)

    def types(self) -> tuple[TypeAdapter[TableDiff], TypeAdapter[None]]:
        return TypeAdapter(TableDiff), TypeAdapter(None)


@dataclass(frozen=True)
class RetryParked(SparkJob["list[CatchUp]", None]):
    """Another try of the tables that were parked because of an error; see
    :func:`cdc.lake.jobs.retry.retry_parked`."""

    done = "the parked tables were tried again"

    def run(self, config: DestinationConfig, progress: Callable[[None], object]) -> list[CatchUp]:
        from cdc.lake.jobs.retry import retry_parked

        return retry_parked(config)

    def types(self) -> tuple[TypeAdapter[list[CatchUp]], TypeAdapter[None]]:
        return TypeAdapter(list[CatchUp]), TypeAdapter(None)


@dataclass(frozen=True)
class MaintainTables(SparkJob["list[Maintained]", "Maintained"]):
    """Maintenance of tables; see :func:`cdc.lake.jobs.maintain_tables.maintain_tables`."""

    done = "the tables were maintained"
    tables: list[str]
    vacuum: bool = True

    def run(self, config: DestinationConfig, progress: Callable[[Maintained], object]) -> list[Maintained]:
        from cdc.lake.jobs.maintain_tables import maintain_tables

        return maintain_tables(config, self.tables, vacuum=self.vacuum, progress=progress)

    def types(self) -> tuple[TypeAdapter[list[Maintained]], TypeAdapter[Maintained]]:
        from cdc.lake.delta.maintenance import Maintained

        return TypeAdapter(list[Maintained]), TypeAdapter(Maintained)


JOBS: dict[str, type[SparkJob[Any, Any]]] = {
    job.__name__: job for job in (Merge, Verify, Snapshot, Replay, Remask, Adopt, Diff, RetryParked, MaintainTables)
}
"""The jobs by the names that a driver under spark-submit is told."""

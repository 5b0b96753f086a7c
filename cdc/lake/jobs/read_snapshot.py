"""Reads the segments of snapshots through Spark's partitions: each task reads its segments one after another and writes
their files itself. Only names and numbers travel through Spark.

Executors need what the driver needs to read the source: a way to it, the folder of the snapshots (``store.stage``, if
they do not see ``store.path``), and the password, which they resolve themselves from the variable or the file that the
configuration names. The text of the configuration is sent to them as it is in its file, so without any secret.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, MergeFailedError
from cdc.config import DestinationConfig, parse
from cdc.lake.runtime.failures import explain, from_json, to_json
from cdc.source.snapshot.progress import ProgressReporter
from cdc.source.snapshot.reader import SegmentTask, read_segment
from cdc.source.snapshot.session import ReaderSessions
from cdc.source.snapshot.taking import Outcome, ReadSegments

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def read_in_spark(spark: SparkSession) -> ReadSegments:
    """Returns the function for ``cdc.source.snapshot.take(read=…)`` that reads segments by tasks of this session, at
    most ``snapshot.parallel`` at the same time."""

    def read(config: DestinationConfig, tasks: Sequence[SegmentTask], reporter: ProgressReporter) -> Iterable[Outcome]:
        if not tasks:
            return []
        parts = min(config.snapshot.parallel, len(tasks))
        text = config.file.read_text(encoding="utf-8")
        run = _reader(text, str(config.file), [list(tasks[part::parts]) for part in range(parts)])
        numbers = spark.range(0, parts, 1, parts)
        try:
            rows = numbers.mapInArrow(run, "folder string, segment int, error string").collect()
        except Exception as error:
            failure = explain(error, "the snapshot")
            if isinstance(failure, MergeFailedError):
                failure = MergeFailedError(f"the snapshot could not be read by Spark: {failure.message}")
            raise failure from error
        messages = {(row["folder"], row["segment"]): row["error"] for row in rows}
        return [(task, _error(messages.get((task.folder, task.segment)))) for task in tasks]

    return read


def _error(content: str | None) -> CdcError | None:
    return None if content is None else from_json(json.loads(content))


def _reader(
    text: str, file: str, parts: list[list[SegmentTask]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function that runs in an executor. It gets the numbers of parts, and returns a row for each segment:
    folder, number, and the error if there was one."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcomes = read_part(text, file, parts[number])
                yield pa.RecordBatch.from_pydict(
                    {
                        "folder": [task.folder for task, _ in outcomes],
                        "segment": pa.array([task.segment for task, _ in outcomes], pa.int32()),
                        "error": pa.array([_as_text(error) for _, error in outcomes], pa.string()),
                    }
                )

    return run


def _as_text(error: CdcError | None) -> str | None:
    return None if error is None else json.dumps(to_json(error))


def read_part(text: str, file: str, tasks: Sequence[SegmentTask]) -> list[Outcome]:
    """Reads some segments one after another, in any process. ``text`` and ``file``: the configuration."""
    config = parse(text, Path(file))
    outcomes: list[Outcome] = []
    failed: set[str] = set()
    with ReaderSessions(config.source) as sessions:
        for task in tasks:
            error: CdcError | None = None
            if task.folder not in failed:
                try:
                    read_segment(config, task, sessions)
                except CdcError as failure:
                    failed.add(task.folder)
                    error = failure
            outcomes.append((task, error))
    return outcomes

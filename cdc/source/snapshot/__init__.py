"""Snapshots: a table's rows as they are on the source, in files, with the binlog positions that they belong to.

Imported by the Spark jobs and the commands; imports the rest of ``source``, ``decode``, ``store``, ``meta`` (the
identity of the source) and ``config``, and nothing of batches, Airflow or Spark. It promises that a value in a file
equals the value that the decoder gives for the same row in the stream, with the same column policies applied; that each
chunk was read between its two positions (see :mod:`.positions` and decision 0052); and that a snapshot that was killed
goes on where it was.

The path of :func:`take`:

1. ``taking.py`` asks the server for the table and begins or resumes the snapshot; ``segments.py`` finds borders;
2. ``reader.py`` reads the chunks of a segment, each inside a transaction of its own, through ``result_set.py`` (the raw
   protocol), ``wire.py`` (how the server describes columns), ``kernels.py`` and ``binary_kernels.py`` (the compiled
   loops) and ``columns.py`` (types, conversions and policies);
3. ``files.py`` writes the chunks and their records;
4. ``positions.py`` turns the records' positions into the seqs that the loader needs.
"""

from cdc.source.snapshot.files import SnapshotFiles
from cdc.source.snapshot.progress import SnapshotProgress, last_progress
from cdc.source.snapshot.reader import SegmentTask
from cdc.source.snapshot.records import ChunkRecord, SnapshotInfo
from cdc.source.snapshot.taking import read_in_threads, take, take_all

__all__ = [
    "ChunkRecord",
    "SegmentTask",
    "SnapshotFiles",
    "SnapshotInfo",
    "SnapshotProgress",
    "last_progress",
    "read_in_threads",
    "take",
    "take_all",
]

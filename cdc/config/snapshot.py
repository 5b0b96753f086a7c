"""``snapshot``: how tables are read from the source, and how much of the source they may use."""

from __future__ import annotations

from pydantic import Field

from cdc.config.values import DurationS, Section, Whole


class SnapshotConfig(Section):
    """The reading of whole tables, by `start: snapshot` and `cdc snapshot`. Nothing is locked."""

    chunk_rows: Whole = Field(default=100_000, ge=1)
    """Number of rows of a chunk, after which a killed snapshot continues. Chunks of large rows have fewer."""
    parallel: Whole = Field(default=4, ge=1, le=256)
    """Number of connections that read at the same time."""
    max_rows_per_s: Whole | None = Field(default=None, ge=1)
    """Limit of rows per second, all connections together; null means no limit."""
    max_threads_running: Whole | None = Field(default=None, ge=1)
    """Reading pauses while the source's `Threads_running`, this reading included, is above this number; null means no
    limit."""
    max_replica_lag_s: DurationS | None = None
    """Reading pauses while the source, if it is a replica itself, is further behind its own source than this; null
    means no limit. The source does not know how far its own replicas are behind it."""

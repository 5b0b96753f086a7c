"""Names the places that still have the values which a policy hides from the lake's present version."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cdc.base.targets import local_path, split_table
from cdc.base.units import human_seconds, iso_time
from cdc.lake.delta.maintenance import RETENTION_PROPERTY, retention_h
from cdc.lake.jobs.replay import BESIDE, has_policies_of
from cdc.lake.jobs.results import Remains
from cdc.source.snapshot.files import SnapshotFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.config import DestinationConfig
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target

LOG_RETENTION = "delta.logRetentionDuration"
_DAYS = re.compile(r"(?:interval\s+)?(\d+)\s+(day|week|hour)s?", re.IGNORECASE)
_DAY_PARTS = {"hour": 1 / 24, "day": 1.0, "week": 7.0}


def remains_of(
    config: DestinationConfig, target: Target, state: DeltaState, *, vacuumed: bool = False
) -> list[Remains]:
    """Returns the places that are known to have the values, if the table is rewritten at this moment. ``vacuumed``:
    whether the files of its old versions are deleted."""
    return [*_lake(config, target, state, vacuumed=vacuumed), *_store(config), *_copies(config, target)]


def _lake(config: DestinationConfig, target: Target, state: DeltaState, *, vacuumed: bool) -> Iterator[Remains]:
    now = datetime.now(UTC)
    if not vacuumed:
        hours = retention_h(state.properties)
        feed = state.properties.get("delta.enableChangeDataFeed") == "true"
        until = (
            f"Its property {RETENTION_PROPERTY} is not understood, so only --vacuum removes them."
            if hours is None
            else f"`cdc maintain {config.name} {target.table}` deletes them from {_day(now, hours / 24)} on, once the "
            "store has no transaction from before the remask; `cdc remask --vacuum` at once."
        )
        what = "old versions of the Delta table" + (", and its change data feed" if feed else "")
        yield Remains(what, target.path, until)
    days = _log_days(state.properties.get(LOG_RETENTION, "interval 30 days"))
    when = f"at the first checkpoint after {_day(now, days + 1)}" if days is not None else "as that property says"
    yield Remains(
        "least and greatest values of columns, in Delta's log",
        f"{target.path}/_delta_log",
        f"Delta removes old entries {when} ({LOG_RETENTION}).",
    )


def _store(config: DestinationConfig) -> Iterator[Remains]:
    store = config.store
    acked_for = store.retain.acked_for
    kept = "as long as store.retain says" if acked_for is None else f"{human_seconds(acked_for)} after they are acked"
    encrypted = ", encrypted" if _is_encrypted(config) else ""
    yield Remains(
        f"the binlog as it was received{encrypted}",
        store.place,
        f"Retention removes segments {kept}. A replay needs them, and makes plain values only by a plain policy.",
    )
    if store.archive.url is not None:
        keep_for = store.archive.keep_for
        until = "They are never removed (store.archive.keep_for)."
        if keep_for is not None:
            until = f"They are removed {human_seconds(keep_for)} after they were written (store.archive.keep_for)."
        yield Remains(f"the archive of the store{encrypted}", store.archive.url, until)
    if store.stage is not None:
        yield Remains("batches on their way to executors", store.stage, "They are removed when their batch is acked.")


def _copies(config: DestinationConfig, target: Target) -> Iterator[Remains]:
    for files in old_snapshots(config, target.table):
        yield Remains(
            "rows that a snapshot has read", files.folder.uri, "The next `cdc snapshot` removes them, or --vacuum."
        )
    folder = local_path(config.apply.target)
    for left in [] if folder is None else sorted(folder.glob(f"{BESIDE}-*")):
        yield Remains("the copy of a replay that was killed", str(left), "The next replay of that table removes it.")
    if config.mq.servers:
        yield Remains(
            "messages of `cdc push`", ", ".join(config.mq.servers), "Kafka's retention removes them from the topics."
        )


def old_snapshots(config: DestinationConfig, table: str) -> list[SnapshotFiles]:
    """Returns the snapshots of a table whose rows have other policies than the configuration says."""
    return [files for files in SnapshotFiles.find(config, *split_table(table)) if not has_policies_of(config, files)]


def _is_encrypted(config: DestinationConfig) -> bool:
    encryption = config.store.encryption
    return any(key is not None for key in (encryption.key_env, encryption.key_file, encryption.key_command))


def _log_days(text: str) -> float | None:
    match = _DAYS.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _DAY_PARTS[match[2].lower()]


def _day(now: datetime, days: float) -> str:
    return iso_time((now + timedelta(days=days)).replace(second=0, microsecond=0))

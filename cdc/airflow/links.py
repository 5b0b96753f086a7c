"""The extra links of tasks: the manifest of a batch, the Delta table that a run changed most, and Spark's UI.

A task leaves the addresses in ``link_targets`` while it runs; Airflow asks for them when it ends, keeps them as XComs
and shows them as buttons. They hold no secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from cdc.base.log import hide_password
from cdc.base.targets import local_path, split_table, table_path

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

    from cdc.airflow.base import DestinationOperator
    from cdc.batches.lease import Lease
    from cdc.config import DestinationConfig

MANIFEST, TABLE, SPARK = "manifest", "table", "spark"
"""Names of targets."""


class _Link(BaseOperatorLink):
    """A button that leads to a target; it is grey if the task has left no address."""

    target: ClassVar[str]

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        return cast("DestinationOperator", operator).link_targets.get(self.target, "")


class TowpathManifestLink(_Link):
    """The manifest of the task's batch; of the run's last one, if it merged several."""

    name = "Manifest"
    target = MANIFEST


class TowpathTableLink(_Link):
    """The Delta table that the task changed most."""

    name = "Delta table"
    target = TABLE


class TowpathSparkLink(_Link):
    """Spark's UI or history server."""

    name = "Spark"
    target = SPARK


def manifest_address(config: DestinationConfig, lease: Lease) -> str:
    """Returns the address of a batch's manifest."""
    path = str(lease.manifest_path)
    if config.airflow.links.manifest is None:
        return _uri(path)
    return batch_address(config, lease.batch, path)


def batch_address(config: DestinationConfig, batch: int, path: str) -> str:
    """Returns the address of a batch's manifest that ``airflow.links.manifest`` gives; empty without it."""
    template = config.airflow.links.manifest
    return "" if template is None else _filled(template, destination=config.name, batch=str(batch), path=path)


def table_address(config: DestinationConfig, table: str, path: str | None = None) -> str:
    """Returns the address of a Delta table. ``path``: its place, unless it is the usual one."""
    db, name = split_table(table)
    path = hide_password(path or table_path(str(config.apply.target), db, name))
    return configured_table_address(config, table, path) or _uri(path)


def configured_table_address(config: DestinationConfig, table: str, path: str) -> str:
    """Returns the address of a Delta table that ``airflow.links.table`` gives; empty without it."""
    template, (db, name) = config.airflow.links.table, split_table(table)
    if template is None:
        return ""
    return _filled(template, destination=config.name, db=db, table=name, path=hide_password(path))


def spark_address(config: DestinationConfig) -> str:
    """Returns the address of Spark's UI; empty if it is not configured."""
    template = config.airflow.links.spark
    return "" if template is None else _filled(template, destination=config.name)


def most_changed(changes: Iterable[tuple[str, int]]) -> str | None:
    """Returns the table with the largest sum of changes, the first one of several; None if there is none."""
    sums: dict[str, int] = {}
    for table, count in changes:
        sums[table] = sums.get(table, 0) + count
    return max(sums, key=lambda table: sums[table], default=None)


def _uri(path: str) -> str:
    local = local_path(path)
    return path if local is None else local.absolute().as_uri()


def _filled(template: str, **values: str) -> str:
    return template.format_map({key: quote(value, safe="/") for key, value in values.items()})

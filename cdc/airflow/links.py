"""The extra links of tasks: the manifest of a batch, the Delta table that a run changed most, and Spark's UI.

A task leaves the addresses in ``link_targets`` while it runs; Airflow asks for them when it ends, keeps them as XComs
and shows them as buttons. They hold no secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from cdc.airflow.plugin import PREFIX
from cdc.base.log import hide_password
from cdc.base.targets import split_table

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
    """Returns the address of a batch's manifest that ``airflow.links.manifest`` gives; without it that of the batch on
    the destination's page."""
    if config.airflow.links.manifest is None:
        return _on_page(config, f"batch-{lease.batch}")
    return batch_address(config, lease.batch, str(lease.manifest_path))


def batch_address(config: DestinationConfig, batch: int, path: str) -> str:
    """Returns the address of a batch's manifest that ``airflow.links.manifest`` gives; empty without it."""
    template = config.airflow.links.manifest
    return "" if template is None else _filled(template, destination=config.name, batch=str(batch), path=path)


def table_address(config: DestinationConfig, table: str, path: str | None = None) -> str:
    """Returns the address of a Delta table that ``airflow.links.table`` gives; without it that of the table on the
    destination's page. ``path``: its place, unless it is the usual one."""
    path = path or config.table_path(table)
    return configured_table_address(config, table, path) or _on_page(config, f"table-{quote(table)}")


def configured_table_address(config: DestinationConfig, table: str, path: str) -> str:
    """Returns the address of a Delta table that ``airflow.links.table`` gives; empty without it."""
    template, (db, name) = config.airflow.links.table, split_table(config.tables.lake_name(table))
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


def _on_page(config: DestinationConfig, part: str) -> str:
    """Returns the address of a part of the destination's page, from the root of Airflow's own address."""
    base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{base}{PREFIX}/{quote(config.name)}#{part}"


def _filled(template: str, **values: str) -> str:
    return template.format_map({key: quote(value, safe="/") for key, value in values.items()})

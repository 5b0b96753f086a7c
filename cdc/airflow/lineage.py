"""OpenLineage: what Airflow's OpenLineage provider asks operators for when a task ends.

Used only if that provider is installed (``towpath[openlineage]``). Datasets are named as OpenLineage's naming
conventions say: a table of the source by its server, a Delta table by its storage and path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from cdc.base.targets import local_path, split_table, table_path

if TYPE_CHECKING:
    from cdc.config import DestinationConfig


class ChangedTable(NamedTuple):
    """A table that a task has filled, or published."""

    table: str
    """``db.table`` at the source."""
    rows: int
    delta_version: int | None


def merged(config: DestinationConfig, tables: Iterable[ChangedTable]) -> Any:
    """Returns the lineage of a merge: from the tables of the source to the Delta tables. An ``OperatorLineage``."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    changed_tables = list(tables)
    return OperatorLineage(
        inputs=[_source(config, table) for table in changed_tables],
        outputs=[_lake(config, table) for table in changed_tables],
    )


def _source(config: DestinationConfig, table: ChangedTable) -> Any:
    from openlineage.client.event_v2 import InputDataset

    source = config.source
    if source.host:
        return InputDataset(namespace=f"mysql://{source.host}:{source.port}", name=table.table)
    return InputDataset(namespace="file", name=f"{urlsplit(source.url).path}/{table.table}")


def _lake(config: DestinationConfig, table: ChangedTable) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
    from openlineage.client.generated.storage_dataset import StorageDatasetFacet

    namespace, name = dataset_of(table_path(config.apply.target, *split_table(table.table)))
    facets: dict[str, Any] = {"storage": StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")}
    if table.delta_version is not None:
        facets["version"] = DatasetVersionDatasetFacet(datasetVersion=str(table.delta_version))
    return OutputDataset(
        namespace=namespace,
        name=name,
        facets=facets,
        outputFacets={"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=table.rows)},
    )


def dataset_of(path: str) -> tuple[str, str]:
    """Returns the namespace and the name of the dataset at a path or URI: ``("file", "/lake/shop/orders")``,
    ``("s3://bucket", "lake/shop/orders")``. Credentials are left out."""
    local = local_path(path)
    if local is not None:
        return "file", str(local.absolute())
    parts = urlsplit(path)
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    # In abfss://container@account the part before the @ is no user.
    host = parts.netloc if scheme in ("abfs", "abfss", "wasb", "wasbs") else parts.netloc.rpartition("@")[2]
    return f"{scheme}://{host}", parts.path.lstrip("/")

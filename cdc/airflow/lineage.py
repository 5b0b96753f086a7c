"""OpenLineage: what Airflow's OpenLineage provider asks operators for when a task ends.

Used only if that provider is installed (``towpath[openlineage]``). Datasets are named as OpenLineage's naming
conventions say: a table of the source by its server, a Delta table by its storage and path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.base.targets import dataset_of
from cdc.client import open_store

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.config import DestinationConfig


_log = get_logger(__name__)


class LineageMixin:
    """An operator that tells Airflow's OpenLineage provider what its task has read and written.

    The provider asks in a fork of the task's process. There deltalake cannot read a table if this process has read one
    before, so the lineage is made when the work is done.
    """

    _lineage: Any = None

    def _tell_lineage(self, make: Callable[[], Any]) -> None:
        """Makes the lineage, an ``OperatorLineage``, if the provider will ask for it."""
        if not _is_asked_for():
            return
        try:
            self._lineage = make()
        except CdcError as error:  # the work itself is done
            _log.warning("the lineage of a task cannot be told", reason=str(error))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Returns the lineage, for Airflow's OpenLineage provider, which calls this also after a failure."""
        from airflow.providers.openlineage.extractors import OperatorLineage

        return OperatorLineage() if self._lineage is None else self._lineage


def _is_asked_for() -> bool:
    try:
        from airflow.providers.openlineage.conf import is_disabled
    except ImportError:
        return False
    return not is_disabled()


class ChangedTable(NamedTuple):
    """A table that a task has written."""

    table: str
    """``db.table`` at the source."""
    rows: int | None
    """Changed or loaded rows; None if the task changed no rows."""
    delta_version: int | None = None
    """None for the newest version."""
    path: str | None = None
    """The path or URI of the Delta table; None for the configured one."""


def written(config: DestinationConfig, tables: Iterable[ChangedTable]) -> Any:
    """Returns the lineage of a task that writes Delta tables: the tables of the source, the Delta tables with their
    columns, and from which column of the source each of these comes. An ``OperatorLineage``."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    changed_tables = list(tables)
    stored = open_store(config).newest_schemas() if changed_tables else None
    definitions = {} if stored is None else stored[1].tables
    return OperatorLineage(
        inputs=[_source(config, table, definitions.get(table.table)) for table in changed_tables],
        outputs=[_lake(config, table, definitions.get(table.table)) for table in changed_tables],
    )


def maintained(config: DestinationConfig, tables: Iterable[str]) -> Any:
    """Returns the lineage of a maintenance: it writes tables of the lake from themselves. An ``OperatorLineage``."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    outputs = [_lake(config, ChangedTable(table, None), None) for table in tables]
    return OperatorLineage(inputs=_as_inputs(outputs), outputs=outputs)


def published(config: DestinationConfig, tables: Iterable[ChangedTable]) -> Any:
    """Returns the lineage of a publication, which reads tables of the lake. An ``OperatorLineage``."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(inputs=_as_inputs(_lake(config, table, None) for table in tables))


def verified(config: DestinationConfig, tables: Iterable[Mapping[str, Any]]) -> Any:
    """Returns the lineage of a verification: the tables of both sides are read, and the Delta tables have the result.
    ``tables``: those of a report's document. An ``OperatorLineage``."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.generated.data_quality_assertions_dataset import (
        Assertion,
        DataQualityAssertionsDatasetFacet,
    )

    inputs = []
    for entry in tables:
        table = ChangedTable(entry["table"], 0, entry["delta_version"])
        inputs.append(_source(config, table, None))
        if table.delta_version is not None:
            lake = _lake(config, table, None)
            proved = Assertion("equal_to_source", success=entry["ok"])
            assertions: dict[str, Any] = {
                "dataQualityAssertions": DataQualityAssertionsDatasetFacet(assertions=[proved])
            }
            inputs.append(InputDataset(lake.namespace, lake.name, inputFacets=assertions, facets=lake.facets))
    return OperatorLineage(inputs=inputs)


def dataset_of_asset(asset: Any, lineage_context: Any) -> Any:
    """Returns the dataset of an asset with the scheme ``towpath``, for Airflow's OpenLineage provider. The assets of
    Delta tables have the tables' own addresses, and Airflow names their datasets itself."""
    from openlineage.client.event_v2 import Dataset

    parts = urlsplit(asset.uri)
    return Dataset(namespace=f"{parts.scheme}://{parts.netloc}", name=parts.path.lstrip("/"))


def _as_inputs(outputs: Iterable[Any]) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset

    return [InputDataset(output.namespace, output.name, facets=output.facets) for output in outputs]


def _source_name(config: DestinationConfig, table: str) -> tuple[str, str]:
    """Returns the namespace and the name of a table of the source."""
    source = config.source
    if source.host:
        return f"mysql://{source.host}:{source.port}", table
    return "file", f"{urlsplit(source.url).path}/{table}"


def _source(config: DestinationConfig, table: ChangedTable, definition: TableSchema | None) -> Any:
    from openlineage.client.event_v2 import InputDataset

    namespace, name = _source_name(config, table.table)
    columns = [] if definition is None else [(column.name, column.column_type) for column in definition.columns]
    return InputDataset(namespace=namespace, name=name, facets=_schema_facet(columns))


def _lake(config: DestinationConfig, table: ChangedTable, definition: TableSchema | None) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
    from openlineage.client.generated.storage_dataset import StorageDatasetFacet

    from cdc.lake.delta.log import open_delta

    path = table.path or config.table_path(table.table)
    columns: list[tuple[str, str]] = []
    version = table.delta_version
    with open_delta(path, table.table) as delta:
        if delta is not None:
            stored = json.loads(delta.schema().to_json())["fields"]
            columns = [(field["name"], _type_text(field["type"])) for field in stored]
            version = delta.version() if version is None else version
    facets: dict[str, Any] = {"storage": StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")}
    facets |= _schema_facet(columns) | _lineage_facet(config, table.table, definition, columns)
    if version is not None:
        facets["version"] = DatasetVersionDatasetFacet(datasetVersion=str(version))
    statistics: dict[str, Any] = {}
    if table.rows is not None:
        statistics["outputStatistics"] = OutputStatisticsOutputDatasetFacet(rowCount=table.rows)
    namespace, name = dataset_of(path)
    return OutputDataset(namespace=namespace, name=name, facets=facets, outputFacets=statistics)


def _type_text(kind: Any) -> str:
    """Returns the name of a type of Delta; of a nested one only what it is."""
    return str(kind["type"] if isinstance(kind, dict) else kind)


def _schema_facet(columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields

    fields = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
    return {"schema": SchemaDatasetFacet(fields=fields)} if fields else {}


def _lineage_facet(
    config: DestinationConfig, table: str, definition: TableSchema | None, columns: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Returns from which column of the source each column of the lake comes, and what a policy does to its values."""
    from openlineage.client.generated.column_lineage_dataset import (
        ColumnLineageDatasetFacet,
        Fields,
        InputField,
        Transformation,
    )

    namespace, name = _source_name(config, table)
    present = {column.lower(): column for column, _ in columns}
    fields: dict[str, Any] = {}
    for column in () if definition is None else definition.columns:
        policy = config.table_apply(table).columns.get(column.name.lower())
        lake_name = column.name if policy is None else policy.lake_name(column.name)
        if lake_name is None or lake_name.lower() not in present or (policy is not None and policy.kind == "null"):
            continue
        is_same = policy is None or policy.kind in ("keep", "rename")
        transformation = Transformation(
            type="DIRECT",
            subtype="IDENTITY" if is_same else "TRANSFORMATION",
            description="" if is_same else str(policy),
            masking=policy is not None and policy.kind in ("hash", "mask"),
        )
        source = InputField(namespace, name, column.name, [transformation])
        fields[present[lake_name.lower()]] = Fields(inputFields=[source])
    return {"columnLineage": ColumnLineageDatasetFacet(fields=fields)} if fields else {}

"""The whole of a configuration file."""

from __future__ import annotations

from pathlib import Path

from cdc.config.apply import AirflowConfig, ApplyConfig, BatchConfig, SparkConfig
from cdc.config.meta import MetaConfig
from cdc.config.source import SourceConfig
from cdc.config.store import StoreConfig
from cdc.config.tables import TablesConfig
from cdc.config.values import Section


class DestinationConfig(Section):
    """A whole ``conf/DEST.yaml``."""

    source: SourceConfig
    tables: TablesConfig
    store: StoreConfig
    meta: MetaConfig
    batch: BatchConfig = BatchConfig()
    apply: ApplyConfig
    spark: SparkConfig = SparkConfig()
    airflow: AirflowConfig = AirflowConfig()

    _name: str = ""
    _file: Path = Path()

    @property
    def name(self) -> str:
        """The destination's name: the file's, without ``.yaml``."""
        return self._name

    @property
    def file(self) -> Path:
        """The configuration file, absolute."""
        return self._file

    def table_apply(self, table: str) -> ApplyConfig:
        """``apply`` as it holds for ``db.table``, overrides included."""
        override = self.tables.overrides.get(table)
        if override is None:
            return self.apply
        given = {k: getattr(override, k) for k in type(override).model_fields if getattr(override, k) is not None}
        given.pop("members", None)  # they are the source's, and have no counterpart in ``apply``
        for key in ("columns", "types"):  # one by one, not as a whole
            if key in given:
                given[key] = {**getattr(self.apply, key), **given[key]}
        return self.apply.model_copy(update=given)

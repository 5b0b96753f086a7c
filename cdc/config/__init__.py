"""``conf/DEST.yaml``: one typed class per stage, checked as a whole when it is loaded.

Nothing else reads the configuration file. An unknown key, a wrong value, or two values that contradict each
other raise :class:`~cdc.errors.ConfigError`, which names file, key, value and remedy. A module for each section
(``tables``, ``source``, ``store`` with ``retain`` and ``standby``, ``meta``, ``apply`` with ``columns``),
``destination`` for the whole, ``files`` from file to object, ``places`` for paths, ``text`` from a fault to a
sentence, ``values`` for kinds of values. May be imported by all but the format (``cdc.binlog``) and the store.
"""

from cdc.config.apply import AirflowConfig, ApplyConfig, BatchConfig, SparkConfig
from cdc.config.columns import ColumnPolicy
from cdc.config.destination import DestinationConfig
from cdc.config.files import conf_dir, destinations, find, load, load_destination, parse
from cdc.config.meta import MetaConfig
from cdc.config.places import as_named
from cdc.config.retain import DiskConfig, RetainConfig
from cdc.config.source import SourceConfig, StartPosition
from cdc.config.standby import StandbyConfig
from cdc.config.store import StoreConfig
from cdc.config.tables import SYSTEM_SCHEMAS, ApplyOverrides, TablesConfig

__all__ = [
    "SYSTEM_SCHEMAS",
    "AirflowConfig",
    "ApplyConfig",
    "ApplyOverrides",
    "BatchConfig",
    "ColumnPolicy",
    "DestinationConfig",
    "DiskConfig",
    "MetaConfig",
    "RetainConfig",
    "SourceConfig",
    "SparkConfig",
    "StandbyConfig",
    "StartPosition",
    "StoreConfig",
    "TablesConfig",
    "as_named",
    "conf_dir",
    "destinations",
    "find",
    "load",
    "load_destination",
    "parse",
]

"""The configuration file ``conf/DEST.yaml``: one typed class for each section, checked as a whole when it is loaded.

Nothing else reads the file. An unknown key, a wrong value, or two values that contradict each other raise
:class:`~cdc.base.errors.ConfigError`, which names file, key, value and remedy.

Each section has a module of its name (``source``, ``tables``, ``store``, ``meta``, ``batch``, ``snapshot``, ``apply``,
``verify``, ``s3``, ``spark``, ``airflow``, ``metrics``, ``server``, ``mq``); ``columns`` holds the policies that
``apply`` and ``tables`` share, ``schedules`` the schedules of DAGs, ``destination`` the whole, and ``memory`` what a
server makes of a store in memory.
``loading`` finds and reads files, ``messages`` translates validation errors, ``values`` has the types of values, and
``secrets`` resolves passwords and keys. ``reference`` renders the models as a commented file, a page and a JSON schema:
defaults and descriptions are written in the models, once; ``descriptions`` reads the latter from their source.

Everything above it imports it. It imports ``base``, ``disk`` and, for GTIDs, ``binlog``.
"""

from cdc.config.airflow import ALARMS, DAG_KINDS, AirflowConfig, DagKind
from cdc.config.apply import ApplyConfig
from cdc.config.batch import BatchConfig
from cdc.config.columns import ColumnPolicy
from cdc.config.destination import DestinationConfig
from cdc.config.loading import (
    as_config,
    as_named,
    conf_dir,
    destinations,
    find,
    load,
    load_destination,
    neighbours,
    parse,
)
from cdc.config.meta import MetaConfig
from cdc.config.metrics import MetricsConfig
from cdc.config.mq import MqConfig
from cdc.config.s3 import S3Config
from cdc.config.server import ServerConfig, TokenConfig
from cdc.config.snapshot import SnapshotConfig
from cdc.config.source import SourceConfig, StartGtid, StartOffsets, StartPosition, StartTime
from cdc.config.spark import SparkConfig
from cdc.config.store import DiskConfig, RetainConfig, StandbyConfig, StoreConfig
from cdc.config.tables import SCRATCH_PREFIX, SYSTEM_SCHEMAS, ApplyOverrides, TablesConfig

__all__ = [
    "ALARMS",
    "DAG_KINDS",
    "SCRATCH_PREFIX",
    "SYSTEM_SCHEMAS",
    "AirflowConfig",
    "ApplyConfig",
    "ApplyOverrides",
    "BatchConfig",
    "ColumnPolicy",
    "DagKind",
    "DestinationConfig",
    "DiskConfig",
    "MetaConfig",
    "MetricsConfig",
    "MqConfig",
    "RetainConfig",
    "S3Config",
    "ServerConfig",
    "SnapshotConfig",
    "SourceConfig",
    "SparkConfig",
    "StandbyConfig",
    "StartGtid",
    "StartOffsets",
    "StartPosition",
    "StartTime",
    "StoreConfig",
    "TablesConfig",
    "TokenConfig",
    "as_config",
    "as_named",
    "conf_dir",
    "destinations",
    "find",
    "load",
    "load_destination",
    "neighbours",
    "parse",
]

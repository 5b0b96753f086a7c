"""The undocumented parts of PySpark that Towpath uses, all in one module.

A release of PySpark may rename any of it. :data:`NAMES` lists the names, and :func:`missing` returns those that the
installed PySpark lacks; a test names them. Tried with PySpark 4.0, 4.1 and 4.2.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkConf
    from pyspark.sql import SparkSession
    from pyspark.sql import types as t

NAMES = (
    "pyspark.core.context:SparkContext._active_spark_context",
    "pyspark.core.context:SparkContext._gateway",
    "pyspark.core.context:SparkContext._jvm",
    "pyspark.core.context:SparkContext().gateway",
    "pyspark.core.context:SparkContext.self._accumulatorServer",
    "pyspark.core.context:SparkContext.self._jsc",
    "pyspark.daemon",
    "pyspark.java_gateway:launch_gateway().popen_kwargs",
    "pyspark.sql.classic.dataframe:DataFrame.self._jdf",
    "pyspark.sql.pandas.types:from_arrow_type().prefer_timestamp_ntz",
    "pyspark.sql.pandas.types:to_arrow_schema",
    "pyspark.sql.pandas.types:to_arrow_type",
    "pyspark.sql.session:SparkSession.Builder.self._options",
    "pyspark.sql.session:SparkSession._activeSession",
    "pyspark.sql.session:SparkSession._instantiatedSession",
    "pyspark.sql.session:SparkSession.self._jsparkSession",
    "pyspark.sql.session:SparkSession.self._jvm",
    "pyspark.sql.connect.client.core:SparkConnectClient.self._session_id",
    "pyspark.sql.connect.client.core:SparkConnectClient.self._user_id",
    "pyspark.sql.connect.observation:Observation",
    "pyspark.worker",
)
"""``module``, ``module:name``, ``module:class.name``; with ``().`` a parameter, with ``self.`` what a class sets in its
instances."""


def missing() -> list[str]:
    """Returns the entries of :data:`NAMES` that the installed PySpark lacks."""
    return [entry for entry in NAMES if not _exists(entry)]


def _exists(entry: str) -> bool:
    module_name, _, path = entry.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        called, is_call, parameter = path.partition("().")
        owner, is_instance, attribute = called.partition(".self.")
        for name in filter(None, owner.split(".")):
            value = getattr(value, name)
    except (ImportError, AttributeError):
        return False
    if is_call:
        return parameter in inspect.signature(value).parameters
    return not is_instance or f"self.{attribute}" in inspect.getsource(value)


# --- the driver's JVM ------------------------------------------------------------------------------------------------


def launch_driver(output: int = 2) -> Any:
    """Starts the JVM of a driver, and returns PySpark's gateway to it. ``output``: a file descriptor for what it
    writes, also on its standard output, where VACUUM prints a line: this process's has the results of a command."""
    from pyspark.java_gateway import launch_gateway

    return launch_gateway(popen_kwargs={"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]


def start_context(conf: SparkConf, gateway: Any, on_broken_connection: Any) -> None:
    """Starts the SparkContext of this process in a JVM. ``on_broken_connection``: called with the request and the
    address when the JVM breaks the connection of its counters; PySpark would print an exception."""
    from pyspark import SparkContext

    context: Any = SparkContext(conf=conf, gateway=gateway)
    context._accumulatorServer.handle_error = on_broken_connection


def gateway() -> Any:
    """Returns the gateway to the JVM of this process's driver; None if there is none."""
    from pyspark import SparkContext

    return SparkContext._gateway


def process_of(gateway: Any) -> subprocess.Popen[bytes] | None:
    """Returns the process that this one has started as a driver; None under spark-submit, which has started both."""
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return process


def counter_server() -> Any:
    """Returns the server of this process to which the JVM sends counters; None if there is none."""
    from pyspark import SparkContext

    return getattr(SparkContext._active_spark_context, "_accumulatorServer", None)


def forget_driver() -> None:
    """Resets PySpark after its JVM was killed, so that another one can be started."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def is_alive(spark: SparkSession) -> bool:
    """Whether the JVM of a session of this process runs, and its context was not stopped."""
    context: Any = spark.sparkContext
    process = process_of(context._gateway)
    return (process is None or process.poll() is None) and context._jsc is not None


def builder_options(builder: SparkSession.Builder) -> dict[str, str]:
    """Returns the settings that a builder of sessions has."""
    options: dict[str, str] = builder._options
    return options


# --- objects in the JVM ----------------------------------------------------------------------------------------------


def jvm_of(spark: SparkSession) -> Any:
    """Returns Py4J's view of the JVM of a session of this process."""
    return spark._jvm


def java_class(view: Any, name: str) -> Any:
    """Returns a class of a JVM by its full name, and keeps it in ``view``.

    For attributes, as in ``view.org.apache.spark.sql.functions``, the JVM looks for classes ``org``, ``org.apache`` and
    so on in each of its jars, every time. Raises Py4JError if there is no such class.
    """
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    kept = vars(view)
    if name not in kept:
        java = getattr(view, name)
        if not isinstance(java, JavaClass):
            raise Py4JError(f"the JVM has no class {name}")
        kept[name] = java
    return kept[name]


def java_session(spark: SparkSession) -> Any:
    """Returns ``org.apache.spark.sql.classic.SparkSession`` of a session of this process."""
    return spark._jsparkSession


def java_context(spark: SparkSession) -> Any:
    """Returns ``org.apache.spark.api.java.JavaSparkContext`` of a session of this process."""
    return spark.sparkContext._jsc


# --- Spark Connect ---------------------------------------------------------------------------------------------------


def is_connect(spark: SparkSession) -> bool:
    """Whether the session runs on a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def connect_ids(spark: SparkSession) -> tuple[str, str]:
    """Returns the user and the id by which a Connect server knows a session."""
    client: Any = spark.client
    return client._user_id or "", client._session_id


def observation(spark: SparkSession) -> Any:
    """Returns a new ``Observation`` for DataFrames of a session."""
    if is_connect(spark):
        from pyspark.sql.connect.observation import Observation as ConnectObservation

        return ConnectObservation()
    from pyspark.sql import Observation

    return Observation()


# --- types of Arrow --------------------------------------------------------------------------------------------------


def from_arrow_type(kind: pa.DataType) -> t.DataType:
    """Returns the Spark type for an Arrow type. Date and time without a zone are TimestampNTZType, which before PySpark
    4.2 is not the default."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def to_arrow_type(kind: t.DataType) -> pa.DataType:
    """Returns the Arrow type for a Spark type; moments have the time zone UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, **_in_utc(to_arrow_type))


def to_arrow_schema(schema: t.StructType) -> pa.Schema:
    """Returns the Arrow schema that Spark expects of batches for its schema; moments have the time zone UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, **_in_utc(to_arrow_schema))


def _in_utc(function: Any) -> dict[str, Any]:
    """Returns the argument that lets moments have the time zone UTC: from PySpark 4.2 on they have none without it, and
    before that a release has them in UTC."""
    return {"timezone": "UTC"} if "timezone" in inspect.signature(function).parameters else {}

"""Spark sessions as the configuration asks: in this process, inside spark-submit, or on a Spark Connect server.

Each process keeps one warm session for the following batches, and replaces it when its JVM has died.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import queue
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError, ConfigError, RetryableError
from cdc.base.log import get_logger
from cdc.lake.runtime import class_archive, driver, private_pyspark
from cdc.lake.runtime.commit_metadata import commit_metadata
from cdc.lake.runtime.connect_server import gateway_of, with_token
from cdc.lake.runtime.driver_jvm import DriverJvm, Gateway
from cdc.lake.runtime.failures import first_line
from cdc.lake.runtime.guard import prove_guard
from cdc.lake.runtime.private_pyspark import is_connect
from cdc.lake.runtime.spark_settings import RUNTIME_SETTINGS, is_inside_submit, settings, worker_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc.config import SparkConfig

APP_ID = "spark.databricks.delta.write.txnAppId"
VERSION = "spark.databricks.delta.write.txnVersion"
METADATA = "spark.databricks.delta.commitInfo.userMetadata"

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_QUICK_COMPILER = " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Options of a JVM that ends before its slower compiler has paid off. That compiler has 240 MB for code, too."""
_SMALL_COLLECTOR = " -XX:+UseSerialGC"
"""The collector that needs the least memory; a JVM refuses to start with two."""

_SHORT_BYTES = 128 << 20
"""Merging so many bytes together does not take long enough for well compiled code."""

_log = get_logger(__name__)
_lock = threading.Lock()
_warm: dict[str, WarmSession] = {}


class WarmSession:
    """The session of this process, and the table sessions that were made from it."""

    def __init__(self, spark: SparkSession, remote: str | None, *, is_short: bool = False) -> None:
        self.spark = spark
        self.tables = TableSessions(spark, remote)
        self.is_short = is_short
        """Its JVM compiles quickly, and not well."""
        self.merged_bytes = 0
        """The bytes of all batches that it was acquired for."""

    def alive(self) -> bool:
        """Whether the session can be used: its JVM or server still runs."""
        try:
            if is_connect(self.spark):
                return bool(self.spark.version)
            return private_pyspark.is_alive(self.spark)
        except Exception as error:  # noqa: BLE001
            logging.getLogger(__name__).debug("the session is broken: %s", error)
            return False

    def sessions_on_server(self) -> list[TableSession]:
        """Returns the sessions on a Connect server; empty for a session of this process."""
        return [TableSession(self.spark), *self.tables.sessions()] if is_connect(self.spark) else []


def _key(config: SparkConfig) -> str:
    return f"{config.remote or config.master} {sorted(config.conf.items())} {config.lake}"


def acquire(config: SparkConfig, batch_bytes: int | None = None) -> WarmSession:
    """Returns the warm session of this process for these settings, and starts it if there is none.

    ``batch_bytes``: the size of the batch that is merged; None: other work. A JVM that is started for a small batch
    does not compile its code well, and is replaced once it is acquired for other work, or for more than 128 MiB
    together. The size makes no difference if the options of Java name a level of compilation. Raises RetryableError if
    Spark cannot be started or reached, ConfigError if it is not installed."""
    key = _key(config)
    with _lock:
        warm_session = _warm.get(key)
        merged_bytes = (
            sys.maxsize
            if batch_bytes is None
            else batch_bytes + (0 if warm_session is None else warm_session.merged_bytes)
        )
        is_short = merged_bytes <= _SHORT_BYTES and "TieredStopAtLevel" not in config.conf.get(_JAVA_OPTIONS, "")
        if warm_session is not None and warm_session.alive() and (is_short or not warm_session.is_short):
            warm_session.merged_bytes = merged_bytes
            return warm_session
        discard()
        if importlib.util.find_spec("pyspark") is None:
            raise ConfigError("PySpark is not installed", place="spark", remedy="Install towpath[spark].")
        if config.remote is not None:
            _log.say(
                f"A session is opened on the Spark Connect server {config.remote_address}.",
                "spark session opens",
                server=config.remote_address,
            )
            # At the interpreter's end gRPC's threads are gone, and closing a session would hang.
            atexit.register(discard)
            remote = with_token(config.remote)
            warm_session = WarmSession(_connect(config, remote), remote)
        elif is_inside_submit():
            warm_session = WarmSession(_of_submit(), None)
        else:
            with said_start(config.master):
                warm_session = WarmSession(_start(config, is_short=is_short), None, is_short=is_short)
        try:
            prove_guard(warm_session.spark, config)
        except BaseException:
            _warm[key] = warm_session
            discard()
            raise
        warm_session.merged_bytes = merged_bytes
        _warm[key] = warm_session
        return warm_session


@contextmanager
def said_start(master: str) -> Iterator[None]:
    """Logs that Spark starts in the block, which takes seconds, and how long it took."""
    began = time.monotonic()
    _log.say(f"Spark starts ({master}).", "spark starts", master=master)
    yield
    seconds = time.monotonic() - began
    _log.say(f"Spark has started in {seconds:.1f} s.", "spark started", master=master, seconds=round(seconds, 3))


def _of_submit() -> SparkSession:
    from pyspark.sql import SparkSession

    _quiet_python()
    return SparkSession.builder.appName("towpath").getOrCreate()


def _start(config: SparkConfig, *, is_short: bool) -> SparkSession:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    _quiet_python()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = worker_path()
    conf = SparkConf(loadDefaults=False).setAppName("towpath").setMaster(config.master)
    values = settings(config)
    if is_short:
        values[_JAVA_OPTIONS] = short_options(values[_JAVA_OPTIONS])
    archive = class_archive.add_archive(values)
    conf.setAll(list(values.items()))
    try:
        driver.start(conf)
        spark = SparkSession.builder.getOrCreate()
        if archive is not None:
            private_pyspark.jvm_of(spark).io.towpath.ClassArchive.writeAtExit(str(archive.folder), archive.digest)
        return spark
    except CdcError:
        raise
    except Exception as error:
        discard()
        raise RetryableError(
            f"Spark could not be started: {first_line(error)}",
            place=f"spark.master {config.master}",
            remedy="Check that Java 17 or 21 is installed, and spark.conf.",
        ) from error


def short_options(options: str) -> str:
    """Returns the options of a JVM for a small batch: those that are given, a quick compiler, and the collector that
    needs the least memory unless another one is chosen."""
    is_chosen = re.search(r"-XX:\+Use\w+GC\b", options)
    return f"{options}{_QUICK_COMPILER}{'' if is_chosen else _SMALL_COLLECTOR}"


def _connect(config: SparkConfig, remote: str) -> SparkSession:
    from pyspark.sql import SparkSession

    _quiet_python()
    try:
        session = SparkSession.builder.remote(remote).create()
        for key, value in (RUNTIME_SETTINGS | config.conf).items():
            if key in RUNTIME_SETTINGS or key.startswith(("spark.sql.", "spark.databricks.")):
                _set_there(session, key, value, config)
        _ = session.version
        return session
    except CdcError:
        driver.ignore_errors(session.stop)  # else the interpreter would not end
        discard()
        raise
    except Exception as error:
        discard()
        raise RetryableError(
            f"the Spark Connect server does not answer: {first_line(error)}",
            place=f"spark.remote {config.remote_address}",
            remedy="Start it with Delta's jars, extension and catalog, or correct spark.remote.",
        ) from error


def _set_there(session: SparkSession, key: str, value: str, config: SparkConfig) -> None:
    """Sets a setting of a session on a Connect server. Raises ConfigError if it is one that the server was started
    with, and has another value there."""
    try:
        session.conf.set(key, value)
    except Exception as error:
        if "CANNOT_MODIFY_STATIC_CONFIG" not in str(error):
            raise
        server_value = session.conf.get(key, None) or ""
        if server_value.removeprefix("file:") != value.removeprefix("file:"):  # Spark shows folders as URIs
            raise ConfigError(
                f"the Spark Connect server was started with {key}={server_value}, and spark.conf says {value}",
                place=f"spark.remote {config.remote_address}",
                remedy=f"Start the server with this setting (`cdc spark start` does), or remove {key}.",
            ) from None


def _quiet_python() -> None:
    """Silences loggers of PySpark: it logs each failed query as JSON, which the errors of Towpath summarise."""
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_from_py4j)  # adding it again has no effect


def _not_from_py4j(record: logging.LogRecord) -> bool:
    """Filters out records of Py4J, which logs each call that a dead JVM does not answer, with a traceback."""
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def discard() -> None:
    """Ends every session of this process: stops those on a Connect server, and kills the JVM that was started here."""
    for warm in _warm.values():
        warm.tables.close()
        if is_connect(warm.spark):
            driver.ignore_errors(warm.spark.stop)
    _warm.clear()
    # A session on a Connect server sets this variable, which prevents the start of a local session.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    if "pyspark" in sys.modules:
        driver.kill()


_INTERRUPT_S = 5.0
"""The time to wait for a Connect server that is asked to interrupt statements."""


def interrupt() -> None:
    """Interrupts all statements that this process runs on a Connect server. Safe in signal handlers. Returns within
    :data:`_INTERRUPT_S`, whether the server answers or not.

    Each session of this process is interrupted as a whole: tags belong to threads, and no other process uses these
    sessions. Threads of their own do it, since a signal may have come in the middle of a request.
    """
    server_sessions = [session for warm in list(_warm.values()) for session in warm.sessions_on_server()]
    threads = [threading.Thread(target=session.interrupt, name="interrupt", daemon=True) for session in server_sessions]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _INTERRUPT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@contextmanager
def setting_of(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Gives settings of the session these values inside the block."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value_before in before.items():
            if value_before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value_before)


@contextmanager
def transaction(spark: SparkSession, application_id: str, seq: int, metadata: str) -> Iterator[None]:
    """Lets the commits of the statements in the block carry an applied position and user metadata, the latter as the
    value of a setting. A statement is skipped if the table has the position already."""
    spark.conf.set(APP_ID, application_id)
    spark.conf.set(VERSION, str(seq))
    spark.conf.set(METADATA, metadata)
    try:
        yield
    finally:
        forget_transaction(spark)
        sign_commits(spark)


@contextmanager
def on_demand(sessions: TableSessions | Callable[[], TableSessions]) -> Iterator[Callable[[], TableSession]]:
    """Yields a function that lends one session until the end of the block, from its first call on."""
    with ExitStack() as stack:

        @cache
        def lend() -> TableSession:
            pool = sessions if isinstance(sessions, TableSessions) else sessions()
            return stack.enter_context(pool.one())

        yield lend


def view_name() -> str:
    """Returns a name that no temporary view has."""
    return f"towpath_rows_{uuid.uuid4().hex}"


@contextmanager
def view_of(rows: DataFrame, name: str | None = None) -> Iterator[str]:
    """Yields the name of a temporary view of these rows: this one, or a new one."""
    view = name or view_name()
    rows.createOrReplaceTempView(view)
    try:
        yield view
    finally:
        rows.sparkSession.catalog.dropTempView(view)


def forget_transaction(spark: SparkSession) -> None:
    """Removes the settings that belong to one statement, so that no other statement carries its version."""
    for key in (APP_ID, VERSION):
        spark.conf.unset(key)


def sign_commits(spark: SparkSession) -> None:
    """Lets the commits of the next statements say who makes them, and no more than that."""
    spark.conf.set(METADATA, commit_metadata())


class TableSession:
    """A session for one table at a time, because the transaction settings belong to the session."""

    def __init__(self, spark: SparkSession, gateway: Gateway | None = None) -> None:
        self.spark = spark
        self._gateway = gateway

    def jvm(self) -> AbstractContextManager[DriverJvm | None]:
        """Yields the driver's JVM; None if it is that of a Connect server which is not at hand."""
        if not is_connect(self.spark):
            return nullcontext(DriverJvm.of(self.spark))
        return nullcontext() if self._gateway is None else self._gateway.jvm(self.spark)

    def interrupt(self) -> None:
        """Interrupts what runs in the session, on a Connect server."""
        gateway = self._gateway
        if gateway is not None:
            driver.ignore_errors(lambda: gateway.cancel(self.spark))
        driver.ignore_errors(self.spark.interruptAll)

    @property
    def is_local(self) -> bool:
        """Whether all tasks run in a JVM of this machine and user, which sees their files."""
        if is_connect(self.spark) and self._gateway is None:
            return False
        master = self.spark.conf.get("spark.master", "") or ""
        return master == "local" or master.startswith("local[")

    def observation(self) -> Any:
        """Returns a new ``Observation`` for this session's DataFrames."""
        return private_pyspark.observation(self.spark)


class TableSessions:
    """A pool of sessions for tables that are merged in parallel; returned ones serve the next table and the next
    batch."""

    def __init__(self, spark: SparkSession, remote: str | None) -> None:
        self._parent = spark
        self._remote = remote
        self._gateway: Gateway | None = None
        if remote is not None:
            self._gateway = gateway_of(remote, spark)
        self._idle: queue.SimpleQueue[TableSession] = queue.SimpleQueue()
        self._sessions: list[TableSession] = []

    @cached_property
    def _settings(self) -> dict[str, str]:
        """The settings of the parent on a Connect server, each of which takes a request."""
        return {key: str(self._parent.conf.get(key)) for key in RUNTIME_SETTINGS}

    @contextmanager
    def one(self) -> Iterator[TableSession]:
        """Lends a session for the duration of the block, in which every commit says who makes it. Its transaction
        settings are removed afterwards."""
        try:
            session = self._idle.get_nowait()
        except queue.Empty:
            session = self._new()
        try:
            sign_commits(session.spark)
            yield session
        finally:
            driver.ignore_errors(lambda: forget_transaction(session.spark))
            self._idle.put(session)

    def _new(self) -> TableSession:
        if self._remote is not None:
            from pyspark.sql import SparkSession

            spark: Any = SparkSession.builder.remote(self._remote).create()
            for key, value in self._settings.items():
                spark.conf.set(key, value)
        else:
            spark = self._parent.newSession()
        session = TableSession(spark, self._gateway)
        self._sessions.append(session)
        return session

    def sessions(self) -> list[TableSession]:
        """Returns the sessions that were made, lent or idle."""
        return [*self._sessions]

    def close(self) -> None:
        """Ends the sessions on a Connect server; those of this process end with their parent."""
        for session in self._sessions:
            if is_connect(session.spark):
                driver.ignore_errors(session.spark.stop)
        self._sessions.clear()
        self._idle = queue.SimpleQueue()

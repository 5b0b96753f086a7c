"""The driver's JVM, as Python reaches it by Py4J, for what Spark's interfaces for Python do not have.

A process with a session of its own has the JVM at hand. A Spark Connect server of this machine that `cdc spark start`
has started listens for such processes, too: on the loopback address, with the token of its record, which only this user
can read. See ``io.towpath.DriverGateway``, which has each connection's objects to itself and releases them at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc.base.errors import RetryableError
from cdc.lake.runtime.private_pyspark import connect_ids, java_class, java_session, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORT_SETTING = "spark.towpath.gateway.port"
"""Setting of a server: where it listens."""


_GATEWAY = "io.towpath.DriverGateway"


class JvmError(Exception):
    """An exception of a JVM that other processes share, as its text."""


@dataclass(frozen=True)
class DriverJvm:
    """The JVM, and a session in it. One that is shared belongs to one thread."""

    view: Any
    """Py4J's view of the JVM, for :func:`~cdc.lake.runtime.private_pyspark.java_class`."""
    session: Any
    """``org.apache.spark.sql.classic.SparkSession``."""
    is_shared: bool = False
    """The JVM serves other processes, too, and outlives this one."""

    @classmethod
    def of(cls, spark: SparkSession) -> DriverJvm:
        """Returns the JVM of a session of this process."""
        return cls(jvm_of(spark), java_session(spark))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes the session the active one of the JVM's thread inside the block: Delta reads its settings."""
        sessions = java_class(self.view, "org.apache.spark.sql.SparkSession")
        before = sessions.getActiveSession()
        sessions.setActiveSession(self.session)
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    @contextmanager
    def persisted(self, rows: Any) -> Iterator[Any]:
        """Keeps the rows of a ``Dataset`` in memory inside the block."""
        kept = java_class(self.view, _GATEWAY).persist(rows) if self.is_shared else rows.persist()
        try:
            yield kept
        finally:
            kept.unpersist()


@dataclass(frozen=True)
class Gateway:
    """The port and the token by which processes of this machine reach the JVM of a Spark Connect server."""

    port: int
    token: str

    @contextmanager
    def jvm(self, spark: SparkSession) -> Iterator[DriverJvm]:
        """Yields the JVM below a session on the server, by a connection of its own. Raises RetryableError if the server
        is not there."""
        with self._connection() as jvm:
            session = java_class(jvm, _GATEWAY).session(*connect_ids(spark))
            yield DriverJvm(jvm, session, is_shared=True)

    def cancel(self, spark: SparkSession) -> None:
        """Cancels the jobs of all threads that use the JVM for this session."""
        with self._connection() as jvm:
            java_class(jvm, _GATEWAY).cancel(*connect_ids(spark))

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        # Machines that parse DAGs, and drive a server of Spark Connect elsewhere, need not have Py4J.
        from py4j import java_gateway, protocol  # type: ignore[import-untyped]

        # PySpark's sessions replace this function of Py4J for the whole process by one that needs their own JVM.
        java_gateway.get_return_value = protocol.get_return_value
        # The JVM releases all objects when the connection ends. Python's garbage collector, which may run in any
        # thread, would release them by connections of its own.
        gateway = java_gateway.JavaGateway(
            gateway_parameters=java_gateway.GatewayParameters(
                port=self.port, auth_token=self.token, auto_convert=True, enable_memory_management=False
            )
        )
        try:
            yield gateway.jvm
        except protocol.Py4JJavaError as error:
            # The exception itself ends with the connection.
            raise JvmError(str(error.java_exception.toString())) from None
        except (protocol.Py4JNetworkError, protocol.Py4JAuthenticationError) as error:
            raise RetryableError(
                "the Spark Connect server has broken the connection",
                place=f"localhost:{self.port}",
                remedy="The batch is merged again, if need be after `cdc spark start`.",
            ) from error
        finally:
            gateway.close()

"""The hook of the connection type ``towpath``: a MySQL or MariaDB server, and the user that captures it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from cdc.airflow.compat import BaseHook
from cdc.airflow.connections import airflow_connections
from cdc.airflow.provider import CONNECTION_TYPE, HOOK_NAME, TLS_FIELDS
from cdc.base.errors import CdcError, ConfigError
from cdc.base.validation import first_fault
from cdc.config import SourceConfig
from cdc.source.connection import connect
from cdc.source.findings import Finding
from cdc.source.preflight import examine_server

if TYPE_CHECKING:
    import pymysql


class TowpathHook(BaseHook):
    """Connects to a source by an Airflow connection, and tests whether its user could capture.

    The connection is of type ``towpath``, or a ``mysql`` one: host, port, login, password, and in the extras
    ``ssl_mode``, ``ssl_ca``, ``ssl_cert`` and ``ssl_key``, as in ``source`` of a configuration file.
    """

    conn_name_attr = "towpath_conn_id"
    default_conn_name = "towpath_default"
    conn_type = CONNECTION_TYPE
    hook_name = HOOK_NAME

    def __init__(self, towpath_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.towpath_conn_id = towpath_conn_id

    def get_conn(self) -> pymysql.connections.Connection[Any]:
        """Returns a PyMySQL connection: UTC, autocommit, utf8mb4.

        Raises ConfigError for a connection that Airflow does not know or that lacks a field, SourceUnavailableError,
        SourceRefusedError.
        """
        with airflow_connections():
            return connect(self._source())

    def test_connection(self) -> tuple[bool, str]:
        """Connects and asks whether this user could capture this server. Returns the verdict and a sentence."""
        try:
            with closing(self.get_conn()) as conn:
                findings = examine_server(conn)
        except ConfigError as error:
            return False, str(error)
        except CdcError as error:
            # Its remedy names keys of a configuration file, which has no part in this.
            fields = "host, port, user, password and TLS"
            return False, f"{error.place}: {error.message}. Check {fields} of the connection."
        errors = [finding for finding in findings if finding.level == "error"]
        return not errors, " ".join(_sentence(finding) for finding in errors or findings)

    def _source(self) -> SourceConfig:
        """Returns the source that the connection describes. Raises ConfigError."""
        from urllib.parse import quote

        from pydantic import ValidationError

        connection = self.get_connection(self.towpath_conn_id)
        for field in ("host", "login"):
            if not getattr(connection, field):
                raise ConfigError(
                    f"the Airflow connection {self.towpath_conn_id!r} has no {field}",
                    remedy="Fill in host, login and password.",
                )
        host = f"[{connection.host}]" if ":" in str(connection.host) else connection.host
        try:
            return SourceConfig.model_validate(
                {
                    "url": f"mysql://{quote(cast('str', connection.login), safe='')}@{host}:{connection.port or 3306}",
                    "connection": self.towpath_conn_id,
                    "server_id": 1,  # only for messages of the preflight: this connection reads no binlog
                    **{key: connection.extra_dejson.get(key) or None for key in TLS_FIELDS},
                }
            )
        except ValidationError as error:
            raise ConfigError(
                f"the Airflow connection {self.towpath_conn_id!r}: {first_fault(error)}",
                remedy="Correct the connection.",
            ) from None


def _sentence(finding: Finding) -> str:
    text = f"{finding.subject.removeprefix('source: ')}: {finding.message}" if finding.level == "error" else ""
    text = text or finding.message
    return f"{text[:1].upper()}{text[1:]}." + (f" {finding.remedy}" if finding.remedy else "")

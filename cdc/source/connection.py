"""Connections to the source, queries, and the translation of their errors."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.constants import CR, ER

from cdc.base.errors import CdcError, ConfigError, SourceRefusedError, SourceUnavailableError, UsageError
from cdc.config import SourceConfig
from cdc.config.secrets import source_credentials
from cdc.source.binlog_files import BinlogFiles
from cdc.source.compressed_socket import Algorithm
from cdc.source.driver import CompressibleConnection, NotOfferedError, unverified

Row = dict[str, Any]
_INIT = "SET time_zone = '+00:00' /*!80030 , show_gipk_in_create_table_and_information_schema = ON */"
"""MySQL from 8.0.30 on can hide the primary keys that it generates from information_schema."""


def connect(
    source: SourceConfig, *, compression: Algorithm | None = None, **pymysql_kw: Any
) -> pymysql.connections.Connection[Any]:
    """Connects to the source. The session uses UTC, autocommit and utf8mb4.

    ``compression``: the server compresses what it sends. ``pymysql_kw`` overrides arguments of ``pymysql.connect``.

    Raises ConfigError (the password cannot be resolved, or a file of TLS cannot be used), SourceUnavailableError (not
    reachable, worth a retry), SourceRefusedError (the server rejects user, password, certificate or account),
    UsageError (the source is a folder of binlog files).
    """
    require_server(source)
    credentials = source_credentials(source)
    arguments: dict[str, Any] = {
        "host": source.host,
        "port": source.port,
        "user": credentials.user,
        # As bytes, because PyMySQL encodes strings as Latin-1, and the servers hash UTF-8.
        "password": credentials.password.encode(),
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": source.connect_timeout_s,
        "read_timeout": 60,
        "write_timeout": 60,
        "init_command": _INIT,
        "program_name": "towpath",
    }
    if source.socket is not None:
        arguments["unix_socket"] = str(source.socket)
    if source.tls == "disabled":
        arguments["ssl_disabled"] = True
    elif source.tls != "preferred":
        arguments["ssl"] = _tls_context(source)
    arguments |= pymysql_kw
    try:
        return CompressibleConnection(compression, **arguments)
    except NotOfferedError as error:
        raise SourceRefusedError(
            f"the server does not offer {error}",
            place=f"source {place_of(source)}",
            remedy="Set source.compression to another value, or add the algorithm to the server's "
            "protocol_compression_algorithms.",
        ) from None
    except (pymysql.err.Error, OSError, RuntimeError) as error:
        raise explain(error, place_of(source), credentials.user) from error


def require_server(source: SourceConfig, what: str = "this") -> None:
    """Raises UsageError if the source is a folder of binlog files. ``what`` needs a server."""
    if source.folder is not None:
        raise UsageError(
            f"{what} needs a server, and the source is a folder of binlog files",
            place=f"source {place_of(source)}",
            remedy="Without a server, `cdc capture` and what works on its store (apply, replay, history) are possible.",
        )


def _tls_context(source: SourceConfig) -> ssl.SSLContext:
    """Returns the TLS context of the connection; the server must offer TLS. Raises ConfigError for a file that is
    missing, or that is not what its key says."""
    for key in ("ssl_ca", "ssl_cert", "ssl_key"):
        path = getattr(source, key)
        if path is not None and not path.is_file():
            raise ConfigError(f"{path} is not a file", place=f"source.{key}", remedy=f"{_PEM[key]}.")
    if source.tls == "required":
        context = unverified()
    else:
        try:
            context = ssl.create_default_context(cafile=source.ssl_ca)
        except OSError as error:  # ssl.SSLError is one
            raise _unusable(source, "ssl_ca", error) from None
        # Certificates that servers make for themselves do not pass the checks that Python 3.13 adds.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = source.tls == "verify_identity"
    if source.ssl_cert is not None:
        try:
            # Without a password OpenSSL would ask for that of an encrypted key at the terminal.
            context.load_cert_chain(source.ssl_cert, source.ssl_key, password="")
        except OSError as error:
            raise _unusable(source, "ssl_cert", error) from None
    return context


_PEM = {
    "ssl_ca": "Set source.ssl_ca to the PEM file of the certificate authority",
    "ssl_cert": "Set source.ssl_cert to the PEM file of a certificate, and source.ssl_key to that of its key, which "
    "must not be encrypted",
}
_PEM["ssl_key"] = _PEM["ssl_cert"]


def _unusable(source: SourceConfig, key: str, error: OSError) -> ConfigError:
    files = [str(source.ssl_ca)] if key == "ssl_ca" else [str(source.ssl_cert), str(source.ssl_key)]
    reason = getattr(error, "reason", None) or error.strerror or error
    return ConfigError(
        f"{' with '.join(files)} cannot be used: {reason}", place=f"source.{key}", remedy=f"{_PEM[key]}."
    )


def place_of(source: SourceConfig) -> str:
    """Returns ``host:port``, or the path of the socket: the name of the source in messages."""
    return source.address


def server_of(conn: pymysql.connections.Connection[Any] | BinlogFiles) -> str:
    """Returns :func:`place_of` for a connection or a folder."""
    if isinstance(conn, BinlogFiles):
        return conn.address
    connection: Any = conn
    return str(connection.unix_socket or f"{connection.host}:{connection.port}")


def query(conn: pymysql.connections.Connection[Any], sql: str, args: Sequence[Any] | None = None) -> list[Row]:
    """Runs one statement and returns its rows as dictionaries. Raises SourceUnavailableError, SourceRefusedError."""
    with mapped(conn), conn.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(sql, args)
        return list(cursor.fetchall())


def quoted(name: str) -> str:
    """Quotes a name of a database, table, column or index for the source's SQL."""
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def mapped(conn: pymysql.connections.Connection[Any]) -> Iterator[None]:
    """Translates the exceptions of PyMySQL into those of Towpath (:func:`explain`)."""
    try:
        yield
    except (pymysql.err.Error, OSError) as error:
        user = conn.user.decode(errors="replace") if isinstance(conn.user, bytes) else str(conn.user or "")
        raise explain(error, server_of(conn), user) from error


_RETRYABLE = frozenset(
    {
        ER.CON_COUNT_ERROR,  # 1040 too many connections
        ER.SERVER_SHUTDOWN,  # 1053
        ER.TOO_MANY_USER_CONNECTIONS,  # 1203
        ER.USER_LIMIT_REACHED,  # 1226
        1152,  # aborting connection
        1158, 1159, 1160, 1161,  # network packets
        1205,  # lock wait timeout
        1213,  # deadlock
        1290, 1317,  # read-only mode; query interrupted
        1927,  # MariaDB: connection was killed
        3169,  # session was killed
        4031,  # disconnected for inactivity
    }
)  # fmt: skip
_LOGIN = frozenset({ER.ACCESS_DENIED_ERROR, 1698})  # 1698: without a password
_ACCOUNT = {
    1129: "Run FLUSH HOSTS (mariadb-admin flush-hosts) on the server.",  # the host is blocked
    1130: "Create the user for this host, or connect from an allowed host.",
    1251: "Change the account to an authentication plugin that the client supports.",
    1524: "Change the account's authentication plugin (IDENTIFIED WITH caching_sha2_password on MySQL).",
    2059: "Change the account's authentication plugin: to caching_sha2_password on MySQL, to ed25519 or "
    "mysql_native_password on MariaDB.",
    1820: "Change the account's expired password.",
    1862: "Change the account's expired password.",
    3118: "Unlock the account (ALTER USER … ACCOUNT UNLOCK).",
    3159: "Remove source.ssl_mode: disabled, because the server requires TLS.",
    4151: "Unlock the account (ALTER USER … ACCOUNT UNLOCK).",
}
_PRIVILEGE = frozenset({1044, 1142, 1143, 1227})


def explain(error: Exception, place: str, user: str) -> CdcError:
    """Translates an exception of PyMySQL, the socket or TLS. ``place`` is what :func:`place_of` returns."""
    place = f"source {place}"
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    text = text.rstrip(".")
    cause = getattr(error, "original_exception", None) or error
    if isinstance(error, RuntimeError):  # PyMySQL lacks a package that the account's way of logging in needs
        return SourceRefusedError(text, place=place, remedy="Install it with pip: towpath[ed25519], or pynacl alone.")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return SourceRefusedError(
            f"the server's certificate is not accepted: {cause.verify_message}",
            place=place,
            remedy="Set source.ssl_ca to the authority's PEM file, and use the certificate's name as the URL's host. "
            "source.ssl_mode: verify_ca accepts any name.",
        )
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # cut, not refused: a refusal is an alert
        return SourceUnavailableError(
            "the connection was closed while TLS began",
            place=place,
            remedy="Check the network to the server; if this persists, source.ssl_ca and ssl_cert.",
        )
    if isinstance(cause, ssl.SSLError):
        return SourceRefusedError(
            f"TLS failed: {cause.reason or cause}", place=place, remedy="Check source.ssl_ca and ssl_cert."
        )
    if code == CR.CR_SSL_CONNECTION_ERROR:
        return SourceRefusedError(
            f"TLS failed: {text}", place=place, remedy="Enable TLS on the server, or set source.ssl_mode: preferred."
        )
    if code in _LOGIN:
        return SourceRefusedError(
            f"the server refuses user {user!r} with this password",
            place=place,
            remedy="Check the user in source.url and the password (password_env, password_file, password_command or "
            "connection). An account that requires a certificate needs source.ssl_cert and ssl_key.",
        )
    if code in _ACCOUNT:
        return SourceRefusedError(f"{text} (error {code})", place=place, remedy=_ACCOUNT[code])
    if code in _PRIVILEGE:
        return SourceRefusedError(
            f"{text} (error {code})", place=place, remedy=f"Grant the missing privilege to {user!r}; see `cdc check`."
        )
    if code == CR.CR_CONN_HOST_ERROR or (isinstance(error, OSError) and not isinstance(error, pymysql.err.Error)):
        return _unreachable(cause, place)
    if code in _RETRYABLE or 2000 <= code < 3000 or isinstance(error, pymysql.err.InterfaceError) or not code:
        return SourceUnavailableError(
            f"the connection failed: {text or type(error).__name__}{f' (error {code})' if code else ''}",
            place=place,
            remedy="Check that a MySQL or MariaDB server listens there, and the network to it.",
        )
    return SourceRefusedError(f"the server answers: {text} (error {code})", place=place)


def _unreachable(cause: BaseException, place: str) -> CdcError:
    if isinstance(cause, socket.gaierror):
        return SourceUnavailableError(
            "the host's name is not known", place=place, remedy="Check the host in source.url, and DNS."
        )
    if place.startswith("source /"):
        return SourceUnavailableError(
            f"cannot be reached: {_reason(cause)}",
            place=place,
            remedy="Check source.socket, and that the server runs on this machine.",
        )
    if isinstance(cause, ConnectionRefusedError):
        return SourceUnavailableError(
            "nothing listens there (connection refused)",
            place=place,
            remedy="Check host and port in source.url, and that the server runs and accepts TCP connections.",
        )
    if isinstance(cause, TimeoutError):
        return SourceUnavailableError(
            "the connection timed out", place=place, remedy="Check host and port in source.url, and firewalls."
        )
    return SourceUnavailableError(
        f"cannot be reached: {_reason(cause)}", place=place, remedy="Check host and port in source.url."
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__

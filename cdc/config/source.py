"""``source``: the server that is captured, the user that connects, and the position at which capture begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AwareDatetime, Discriminator, Field, PrivateAttr, Tag, field_validator, model_validator

from cdc.base.errors import DamagedError
from cdc.binlog.gtids import GtidSet, MariadbPosition
from cdc.config.secret_source import Secret
from cdc.config.values import Command, Doc, DurationS, FilePath, FilledText, Section, Whole


class StartPosition(Section):
    """A position in the binlog, ``start: {file: binlog.000003, pos: 4}``."""

    file: FilledText
    """Name of a binlog file on the server."""
    pos: Whole = Field(default=4, ge=4)
    """Byte offset of an event that begins a transaction; 4 is the start of the file."""

    @field_validator("file")
    @classmethod
    def _file(cls, file: str) -> str:
        if not re.fullmatch(r".+\.\d+", file):
            raise ValueError("is not the name of a binlog file like binlog.000003")
        return file


class StartGtid(Section):
    """The transactions that are known already, ``start: {gtid: 0-1-77}``."""

    gtid: FilledText
    """A GTID set of MySQL (`gtid_executed` of a dump or backup) or a GTID position of MariaDB (`gtid_binlog_pos`)."""

    @property
    def mysql(self) -> GtidSet:
        """The set, for a MySQL source."""
        return GtidSet.parse(self.gtid)

    @property
    def mariadb(self) -> MariadbPosition:
        """The position, for a MariaDB source."""
        return MariadbPosition.parse(self.gtid)


class StartTime(Section):
    """A time, ``start: {time: '2026-11-20T10:00:00Z'}``."""

    time: AwareDatetime
    """A time with its zone. Capture begins with the first transaction that was committed then or later, by the server's
    clock."""

    @field_validator("time", mode="before")
    @classmethod
    def _time(cls, time: Any) -> Any:
        try:
            moment = datetime.fromisoformat(time) if isinstance(time, str) else time
        except ValueError:
            moment = None
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise ValueError("is not a time with its zone; write it like 2026-11-20T10:00:00Z or …+01:00")
        return moment


class StartOffsets(Section):
    """The position of another tool, ``start: {offsets: offsets.dat}``."""

    offsets: FilePath
    """A file with the position of Debezium (Kafka Connect's offsets as JSON, or `offsets.dat`), Canal (the cursor, or
    `meta.dat`) or Maxwell (a row of `maxwell.positions` as JSON). It is read when capture begins, and not later."""


def _start_kind(value: Any) -> str:
    if isinstance(value, StartOffsets) or (isinstance(value, dict) and "offsets" in value and "file" not in value):
        return "offsets"
    if isinstance(value, StartGtid) or (isinstance(value, dict) and "gtid" in value and "file" not in value):
        return "gtid"
    if isinstance(value, StartTime) or (isinstance(value, dict) and "time" in value and "file" not in value):
        return "time"
    return "position" if isinstance(value, dict | StartPosition) else "word"


Start = Annotated[
    Annotated[Literal["snapshot", "earliest", "now"], Tag("word")]
    | Annotated[StartPosition, Tag("position")]
    | Annotated[StartGtid, Tag("gtid")]
    | Annotated[StartTime, Tag("time")]
    | Annotated[StartOffsets, Tag("offsets")],
    Discriminator(_start_kind),
]


SslMode = Literal["disabled", "preferred", "required", "verify_ca", "verify_identity"]
_OF_A_SERVER = (
    "password_env", "password_file", "password_command", "connection",
    "standbys", "standby_after_s", "server_id", "heartbeat_s", "connect_timeout_s", "compression",
    "purge_alarm_ratio", "socket", "ssl_mode", "ssl_ca", "ssl_cert", "ssl_key",
)  # fmt: skip
"""Keys that have no effect with a folder of binlog files."""


def _parses(kind: type[GtidSet | MariadbPosition], text: str) -> bool:
    try:
        kind.parse(text)
    except DamagedError:
        return False
    return True


class SourceConfig(Section):
    """The MySQL or MariaDB server that is captured, or a folder of its binlog files."""

    url: Annotated[FilledText, Doc(example="mysql://cdc@db.example:3306")]
    """Address of the server, without the password: `mysql://USER@HOST:PORT` or `mariadb://USER@HOST:PORT`. Or
    `binlog:///FOLDER`: a folder of binlog files, which may grow."""
    password_env: Annotated[str | None, Doc(example="SHOP_DB_PASSWORD")] = None
    """Environment variable that holds the password."""
    password_file: Annotated[FilePath | None, Doc(example="shop.password", instead_of="password_env")] = None
    """File whose first line is the password, read at each connect. A relative path is taken from the folder of this
    file."""
    password_command: Annotated[
        Command | None,
        Doc(example=["vault", "read", "-field=password", "database/creds/cdc"], instead_of="password_env"),
    ] = None
    """Command whose first line of output is the password: the program and its arguments. It runs at each connect,
    without a shell, and has 30 seconds."""
    connection: Annotated[str | None, Doc(example="shop_db", instead_of="password_env")] = None
    """Id of an Airflow connection. Its user and password are used; host and port stay those of `url`."""
    standbys: Annotated[tuple[FilledText, ...], Doc(example=["db2.example:3306"])] = ()
    """Replicas of the server, to one of which capture moves when the server does not answer: `HOST:PORT`, or a URL like
    `url` if the user is another one. All servers need GTIDs. The password is the same."""
    standby_after_s: DurationS = 15.0
    """Time for which the server must not answer before capture tries the standbys."""
    server_id: Annotated[Whole, Doc(example=52017)] = Field(ge=1, le=2**32 - 1)
    """Server id of capture. It must differ from those of the source and of all its replicas. A folder of binlog files
    needs none."""
    schemas: FilePath | None = None
    """For a folder of binlog files: a file `schemas/SEQ.json` of a store that describes the tables at the position
    where capture begins. It is needed if the binlog names no columns (binlog_row_metadata is not FULL), and for
    MariaDB's UUID, INET4, INET6 and VECTOR. A relative path is taken from the folder of this file."""
    start: Annotated[
        Start,
        Doc(
            example="snapshot",
            choices={
                "snapshot": "the tables as they are, by `cdc snapshot`, then their changes",
                "earliest": "all changes that the server's binlog still holds",
                "now": "only what changes from now on",
                "{file: binlog.000012, pos: 4}": "the changes from this position of the binlog on",
                "{gtid: '…'}": "the changes that are not in this GTID set, or come after this position of MariaDB",
                "{time: '2026-11-20T10:00:00Z'}": "the changes that were committed from this time on",
                "{offsets: offsets.dat}": "the changes from the position on that Debezium, Canal or Maxwell has stored",
            },
        ),
    ] = "snapshot"
    """Position at which capture begins when the store is empty. For a folder of binlog files, `snapshot` and `now` are
    refused, and without a value capture begins with the oldest file."""
    heartbeat_s: DurationS = 10.0
    """Interval of the server's heartbeats. Capture reconnects after three missed ones."""
    connect_timeout_s: DurationS = 10.0
    """Time limit for connecting to the server."""
    max_failures: Whole = Field(default=10, ge=1)
    """Capture stops after this number of connections in a row that broke while the server had more to send, and brought
    no new transaction. An event is damaged at the source then."""
    compression: Annotated[
        Literal["zlib", "zstd"] | None,
        Doc(choices={"zlib": "every server has it", "zstd": "MySQL 8.0.18 and later; fewer bytes"}),
    ] = None
    """The algorithm by which the server compresses the binlog that it sends, for a slow or costly network. Snapshots
    are not compressed."""
    ignore_xa: Annotated[tuple[FilledText, ...], Doc(example=["x'61',x'',1"])] = ()
    """XA transactions that capture passes at their XA COMMIT if their XA PREPARE is not known any more: the xids as an
    error has named them."""
    accept_binlog_filters: bool = False
    """Whether capture reads a server with `binlog_do_db` or `binlog_ignore_db`. Such a server leaves statements out of
    its binlog by the default database of their session, whatever table they name. Set it only if no session with such a
    database defines or empties captured tables."""
    purge_alarm_ratio: float = Field(default=0.25, ge=0, lt=1)
    """Capture warns, and `cdc check` fails, when less than this share of the server's retention (its time, or MariaDB's
    size) is left before it purges binlog files that capture has not read. 0 switches it off."""
    socket: FilePath | None = None
    """Socket file of a server on this machine. The host in `url` is `localhost` then, without a port."""
    ssl_mode: Annotated[
        SslMode | None,
        Doc(
            choices={
                "disabled": "never",
                "preferred": "if the server offers it; nothing is verified",
                "required": "always; nothing is verified",
                "verify_ca": "always; the certificate must be of `ssl_ca`, or of an authority that the system trusts",
                "verify_identity": "as `verify_ca`, and it must be for the host in `url`",
            }
        ),
    ] = None
    """Whether the connection uses TLS, by the names of MySQL's clients. Without it, `verify_identity` holds if `ssl_ca`
    is given, `required` if only `ssl_cert` is, and otherwise `preferred`."""
    ssl_ca: FilePath | None = None
    """PEM file of the certificate authority by which the server's certificate is verified. A relative path is taken
    from the folder of this file."""
    ssl_cert: FilePath | None = None
    """PEM file of capture's own certificate, for an account that requires one. A relative path is taken from the folder
    of this file."""
    ssl_key: FilePath | None = None
    """PEM file of the private key of `ssl_cert`, without a password."""

    password: ClassVar = Secret("source", "the password of {0.user!r}", instead=("connection",))

    _server_uuid: str | None = PrivateAttr(default=None)
    _password: str | None = PrivateAttr(default=None)
    """The password that a program has passed, in place of the keys above."""

    @model_validator(mode="before")
    @classmethod
    def _of_folder(cls, data: Any) -> Any:
        """Fills in and checks what a folder of binlog files has in place of a server's settings."""
        if not isinstance(data, dict) or not str(data.get("url") or "").startswith("binlog:"):
            return data
        for key in _OF_A_SERVER:
            if key in data:
                raise ValueError(f"{key} has no effect with a folder of binlog files ({data['url']}); remove it")
        if data.get("start") in ("snapshot", "now"):
            raise ValueError(
                f"start: {data['start']} needs a server, and url names a folder of binlog files; use earliest, a file "
                "and position, a GTID set or a time"
            )
        return {"server_id": 1, "start": "earliest", **data}

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme == "binlog":
            if parts.netloc or not parts.path.strip("/") or parts.query or parts.fragment:
                raise ValueError("must name a folder by its absolute path; write it like binlog:///var/backups/binlogs")
            return url
        if parts.scheme not in ("mysql", "mariadb"):
            raise ValueError("must begin with mysql:// or mariadb://")
        if not parts.hostname:
            raise ValueError("has no host; write it like mysql://user@host:3306")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError("has no valid port; write it like mysql://user@host:3306") from None
        if parts.password is not None:
            raise ValueError("must not hold the password; use password_env, password_file or password_command")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError("must end with the port; choose databases and tables with tables.include")
        return url

    def _contradictions(self) -> Iterator[str]:
        if self.folder is None and self.connection is None:
            for server in self.servers():
                if not server.user:
                    yield f"{server.url!r} has no user; write it like mysql://user@host:3306"
        if self.schemas is not None and self.folder is None:
            yield "schemas has no effect with a server, which describes its tables; remove it"
        yield from self._tls_contradictions()
        yield from self._socket_contradictions()
        yield from self._start_contradictions()
        yield from self._standbys_contradictions()

    def _tls_contradictions(self) -> Iterator[str]:
        if (self.ssl_cert is None) != (self.ssl_key is None):
            present, missing = ("ssl_key", "ssl_cert") if self.ssl_cert is None else ("ssl_cert", "ssl_key")
            yield f"{present} needs {missing} beside it"
        if self.ssl_ca is not None and self.tls in ("disabled", "preferred", "required"):
            yield f"ssl_ca has no effect with ssl_mode: {self.tls}; remove it, or use verify_ca or verify_identity"
        if self.ssl_cert is not None and self.tls in ("disabled", "preferred"):
            yield f"ssl_cert needs a connection with TLS, and ssl_mode is {self.tls}; use required"

    def _socket_contradictions(self) -> Iterator[str]:
        if self.socket is None:
            return
        if self.standbys:
            yield "socket and standbys contradict each other: standbys are reached by the network"
        if self.host != "localhost" or urlsplit(self.url).port is not None:
            yield (
                f"socket has a server of this machine, so the host in url has no effect; write {self.flavor}://"
                "USER@localhost"
            )
        keys = [key for key in ("ssl_mode", "ssl_ca", "ssl_cert") if getattr(self, key) is not None]
        if keys and self.ssl_mode != "disabled":
            yield f"{keys[0]} has no effect beside socket, which leaves no machine; remove it"

    def _start_contradictions(self) -> Iterator[str]:
        if isinstance(self.start, StartGtid) and self.folder is not None:
            start = self.start
            if not any(_parses(kind, start.gtid) for kind in (GtidSet, MariadbPosition)):
                yield f"start.gtid: {start.gtid!r} is no GTID set of MySQL and no GTID position of MariaDB"
        elif isinstance(self.start, StartGtid):
            try:
                _ = self.start.mariadb if self.flavor == "mariadb" else self.start.mysql
            except DamagedError as error:
                yield f"start.gtid: {error.message}"

    @field_validator("standbys")
    @classmethod
    def _standbys(cls, standbys: tuple[str, ...]) -> tuple[str, ...]:
        for standby in standbys:
            if "://" not in standby:
                cls._url(f"mysql://user@{standby}")
            else:
                cls._url(standby)
        return standbys

    def _standbys_contradictions(self) -> Iterator[str]:
        for server in self.servers()[1:]:
            if server.flavor != self.flavor:
                yield f"standbys: {server.url} and url name different products; standbys are replicas of it"
        addresses = [server.address for server in self.servers()]
        for number, address in enumerate(addresses):
            if address in addresses[:number]:
                yield f"standbys: {address} is given twice, or is the address in url"

    def servers(self) -> list[SourceConfig]:
        """Returns the source at each of its servers: that of `url`, then the standbys."""
        scheme, user = urlsplit(self.url).scheme, urlsplit(self.url).username or ""
        urls = [standby if "://" in standby else f"{scheme}://{user}@{standby}" for standby in self.standbys]
        return [self, *(self.model_copy(update={"url": url}) for url in urls)]

    @property
    def flavor(self) -> Literal["mysql", "mariadb"]:
        """The product that the URL's scheme names; the preflight compares it with the server's answer. A folder of
        binlog files has the product in its files, see :attr:`folder`."""
        return "mariadb" if self.url.startswith("mariadb:") else "mysql"

    def bound_to(self, server_uuid: str) -> SourceConfig:
        """Returns the source at one server: a dump that meets another server at the address is refused."""
        bound = self.model_copy()
        bound._server_uuid = server_uuid
        return bound

    @property
    def server_uuid(self) -> str | None:
        """The server that every dump must come from; None if any may answer."""
        return self._server_uuid

    @property
    def folder(self) -> Path | None:
        """The folder of binlog files that is captured in place of a server; None for a server."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "binlog" else None

    @property
    def address(self) -> str:
        """``host:port``, or the path of the socket or of the folder of binlog files: the name of the source in
        messages."""
        if self.folder is not None:
            return str(self.folder)
        if self.socket is not None:
            return str(self.socket)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def tls(self) -> SslMode:
        """The mode of TLS that holds."""
        if self.ssl_mode is not None:
            return self.ssl_mode
        if self.socket is not None:
            return "disabled"
        if self.ssl_ca is not None:
            return "verify_identity"
        return "preferred" if self.ssl_cert is None else "required"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 3306

    @property
    def user(self) -> str:
        return unquote(urlsplit(self.url).username or "")

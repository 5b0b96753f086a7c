"""The section ``source`` of the configuration: which server, who asks, where to begin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from cdc.config.values import DurationS, FilledText, Section, Whole


class StartPosition(Section):
    """``start: {file: binlog.000003, pos: 4}``."""

    file: FilledText
    pos: Whole = Field(default=4, ge=4)

    @field_validator("file")
    @classmethod
    def _file(cls, file: str) -> str:
        if not re.fullmatch(r".+\.\d+", file):
            raise ValueError("is not the name of a binlog file like binlog.000003")
        return file


def _start_kind(value: Any) -> str:
    return "position" if isinstance(value, dict | StartPosition) else "word"


Start = Annotated[
    Annotated[Literal["snapshot", "earliest", "now"], Tag("word")] | Annotated[StartPosition, Tag("position")],
    Discriminator(_start_kind),
]


class SourceConfig(Section):
    """The server that is captured."""

    url: FilledText
    """``mysql://user@host:port`` or ``mariadb://…``."""
    password_env: str | None = None
    """Name of the environment variable that holds the password."""
    password_file: Path | None = None
    """File whose first line is the password; relative to the configuration file."""
    connection: str | None = None
    """Id of an Airflow connection that holds user and password."""
    server_id: Whole = Field(ge=1, le=2**32 - 1)
    """Unique among the source's replicas."""
    start: Start = "snapshot"
    heartbeat_s: DurationS = 10.0
    """The server sends a heartbeat after so long a silence; three missed ones are a dead connection."""
    max_failures: Whole = Field(default=10, ge=1)
    """Capture ends when so many connections in a row ended while there was more to read, and none of them brought a new
    transaction: an event is damaged at the source."""
    connect_timeout_s: DurationS = 10.0
    ssl_ca: Path | None = None
    """PEM file, relative to the configuration file; when given, the connection is TLS and the server's certificate is
    verified."""

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme == "binlog":
            raise ValueError("binlog files as a source are not there yet; give a mysql:// or mariadb:// URL")
        if parts.scheme not in ("mysql", "mariadb"):
            raise ValueError("must begin with mysql:// or mariadb://")
        if not parts.hostname:
            raise ValueError("has no host; write it like mysql://user@host:3306")
        if not parts.username:
            raise ValueError("has no user; write it like mysql://user@host:3306")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError("has no valid port; write it like mysql://user@host:3306") from None
        if parts.password is not None:
            raise ValueError("must not hold the password; use password_env or password_file")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError("must end with the port; choose databases and tables with tables.include")
        return url

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        given = [k for k in ("password_env", "password_file", "connection") if getattr(self, k) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} contradict each other; keep one of them")
        return self

    @property
    def flavor(self) -> Literal["mysql", "mariadb"]:
        """What the URL's scheme says; the preflight compares it with the server's own word."""
        return "mariadb" if self.url.startswith("mariadb:") else "mysql"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 3306

    @property
    def user(self) -> str:
        return unquote(urlsplit(self.url).username or "")

"""The arguments of :func:`cdc.stream` as a configuration that capture understands."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pydantic import ValidationError

from cdc.base.errors import UsageError
from cdc.config import DestinationConfig
from cdc.config.loading import as_config
from cdc.config.memory import NO_LAKE
from cdc.config.messages import explain
from cdc.source.connection import connect
from cdc.source.server import variables
from cdc.store.writer.durability import FlushPolicy

Patterns = str | Iterable[str]
Tables = Patterns | Mapping[str, Any]
Start = str | Mapping[str, Any] | datetime
_SCHEMES = ("mysql://", "mariadb://", "binlog://")
_PLACE = Path("cdc.stream")
"""What messages about arguments name as their place."""
_NAME = "stream"
_LARGEST = 268435456


@dataclass(frozen=True)
class MemoryRing:
    """Canal's ring for each reader, in memory. Capture waits while so much is not acked. Raises ConfigError for a size
    that is out of range."""

    buffer_size: int = 16384
    """In units of ``buffer_unit_bytes``, or in events: a power of two."""
    buffer_unit_bytes: int = 1024
    batch_mode: Literal["memsize", "itemsize"] = "memsize"
    """Whether ``buffer_size`` counts units of bytes, or events."""
    max_transaction_bytes: int = _LARGEST
    """The largest transaction that is taken into memory."""

    def __post_init__(self) -> None:
        _require_limit(self.max_transaction_bytes)


@dataclass(frozen=True)
class FileStore:
    """A log on a disk for all readers, in the folder ``state``. Capture goes on while readers wait. Raises UsageError
    for a size that is out of range."""

    flush: FlushPolicy | Literal["sync", "async"] = "sync"
    """When transactions reach the disk, and so the readers."""
    segment_bytes: int = 67108864
    """The size at which a new segment is begun. Segments that all readers have acked are removed."""
    max_transaction_bytes: int = _LARGEST
    """The largest transaction that is taken into memory."""

    def __post_init__(self) -> None:
        _require_limit(self.max_transaction_bytes)
        if self.segment_bytes < 65536:
            raise UsageError(
                f"segment_bytes={self.segment_bytes} is too small", place="cdc.stream", remedy="Pass at least 65536."
            )
        if not isinstance(self.flush, FlushPolicy) and self.flush not in ("sync", "async"):
            raise UsageError(
                f"flush={self.flush!r} is no rule for flushing",
                place="cdc.stream",
                remedy="Pass sync, async or a FlushPolicy.",
            )

    @property
    def policy(self) -> FlushPolicy:
        """The rule for flushing."""
        return self.flush if isinstance(self.flush, FlushPolicy) else FlushPolicy(self.flush)


def _require_limit(max_transaction_bytes: int) -> None:
    if max_transaction_bytes < 1:
        raise UsageError(
            f"max_transaction_bytes={max_transaction_bytes} takes no transaction",
            place="cdc.stream",
            remedy=f"Pass {_LARGEST}, or another number of bytes.",
        )


def make_config(
    source: str | Path | DestinationConfig | None,
    password: str | None,
    tables: Tables | None,
    start: Start | None,
    settings: Mapping[str, Any],
) -> DestinationConfig:
    """Returns the configuration of the source and its tables; store and meta are not part of it. Raises ConfigError,
    UsageError; what connecting to the server raises, which is asked how its names of tables compare."""
    if isinstance(source, str) and source.startswith(_SCHEMES):
        url, secret = _without_password(source)
        password = secret if password is None else password
        document: dict[str, Any] = {"source": {"url": url, **settings}, "tables": {"include": [r".*\..*"]}}
    else:
        document = _of_configuration(as_config(source), settings)
    origin, choice = document["source"], document["tables"]
    if isinstance(tables, Mapping):
        choice.update(tables)
    elif tables is not None:
        choice["include"] = _listed(tables)
    if start is not None:
        origin["start"] = {"time": start} if isinstance(start, datetime) else start
    is_server = not str(origin["url"]).startswith("binlog:")
    if is_server:
        origin.setdefault("start", "now")
        # Above the ids that people give their servers.
        origin.setdefault("server_id", 2**31 + secrets.randbelow(2**31 - 1))
    if origin.get("start") == "snapshot":
        raise UsageError(
            "start='snapshot' reads tables, and a stream has only changes",
            place="cdc.stream",
            remedy="Pass now, earliest, a datetime, {'gtid': …} or {'file': …, 'pos': …}.",
        )
    document |= {"store": {"path": "store"}, "meta": {"path": "meta"}, "apply": {"target": NO_LAKE}}
    config = _validated(document, password)
    if is_server and "lower_case_table_names" not in choice:
        with connect(config.source) as conn:
            names = int(variables(conn, ("lower_case_table_names",)).get("lower_case_table_names", 0))
        if names:
            choice["lower_case_table_names"] = names
            config = _validated(document, password)
    return config


def _of_configuration(config: DestinationConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the source and the tables of a configuration, without what makes its own capture what it is."""
    if settings:
        raise UsageError(
            f"{', '.join(settings)}: a configuration has its own settings of the source",
            place="cdc.stream",
            remedy="Write them into the configuration, or name the server by a URL.",
        )
    if config.source.standbys:
        raise UsageError(
            "source.standbys: a stream reads one server, and does not move to another one",
            place=str(config.file),
            remedy="Name the server by a URL, or use `cdc capture` with cdc.connector.",
        )
    source = config.source.model_dump(exclude_unset=True)
    source.pop("server_id", None)
    if source.get("start") == "snapshot":
        del source["start"]
    tables = config.tables.model_dump(exclude_unset=True)
    return {"source": source, "tables": {"lower_case_table_names": config.tables.lower_case_table_names, **tables}}


def _validated(document: dict[str, Any], password: str | None) -> DestinationConfig:
    try:
        config = DestinationConfig.model_validate(document, context=_PLACE.absolute())
    except ValidationError as error:
        raise explain(error, _PLACE, DestinationConfig) from None
    config._name = _NAME
    if password is not None:
        config.source._password = password
    return config


def at_folder(config: DestinationConfig, folder: Path, store_name: str) -> DestinationConfig:
    """Returns the configuration with its meta and, by this name, its store in a folder."""
    store = config.store.model_copy(update={"path": folder / store_name})
    meta = config.meta.model_copy(update={"path": folder / "meta"})
    placed = config.model_copy(update={"store": store, "meta": meta})
    placed._file = folder / "stream"
    return placed


def _listed(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _without_password(url: str) -> tuple[str, str | None]:
    parts = urlsplit(url)
    if parts.password is None:
        return url, None
    host = parts.netloc.rpartition("@")[2]
    user = quote(unquote(parts.username or ""), safe="")
    return urlunsplit(parts._replace(netloc=f"{user}@{host}")), unquote(parts.password)

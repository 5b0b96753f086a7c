"""Opens store, meta and batches of a destination, wherever they are: on this machine, or at a server.

Pipeline, jobs, verification, commands and the Airflow package open them here, so that they need not know. What is
opened is imported where it is opened: without the other kinds, and without NumPy for the meta alone. With ``store:
{kind: server}`` the parts in this package ask ``cdc server`` (:mod:`cdc.server`) through a connection of
:mod:`cdc.wire`. It imports :mod:`cdc.batches` and the layers below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cdc.base.errors import ConfigError
from cdc.base.targets import split_table
from cdc.config.secrets import server_token
from cdc.config.values import no_disk
from cdc.meta import open_meta as open_local_meta
from cdc.wire.connection import Connection, remember

if TYPE_CHECKING:
    from datetime import datetime

    from cdc.base.errors import LeaseHeldError, StoreIncompleteError
    from cdc.batches.protocol import Batches
    from cdc.batches.table_batches import TableChangeReader
    from cdc.config import DestinationConfig
    from cdc.meta import Meta
    from cdc.store.reader.store import Store

__all__ = [
    "captured_tables",
    "connect",
    "find_obstacle",
    "open_batches",
    "open_meta",
    "open_store",
    "open_table_batches",
]


def open_meta(config: DestinationConfig) -> Meta:
    """Returns the meta of a destination. It opens files and connections on first use only."""
    if config.store.kind == "file":
        return open_local_meta(config)
    from cdc.client.meta import RemoteMeta

    return RemoteMeta(connect(config))


def open_store(config: DestinationConfig, base_name: str | None = None) -> Store:
    """Returns the store of a destination. ``base_name``: the base name of the source's binlog files, for positions in
    them; a server knows it."""
    if config.store.kind == "file":
        from cdc.store.reader.reader import StoreReader

        return StoreReader(config.store.path, base_name)
    from cdc.client.reader import RemoteReader

    return RemoteReader(connect(config))


def open_batches(config: DestinationConfig, *, mixes: bool = False) -> Batches:
    """Returns the batches of a destination. ``mixes``: whether new ones may hold rows and DDL statements, as
    :attr:`cdc.store.reader.batch_builder.Limits.mixes` says."""
    if config.store.kind == "file":
        from cdc.batches.service import BatchService

        return BatchService(config, mixes=mixes)
    from cdc.client.batches import RemoteBatchService

    return RemoteBatchService(connect(config), config.batch, mixes=mixes)


def open_table_batches(
    config: DestinationConfig, meta: Meta | None = None, *, archived: Literal["no", "release", "keep"] = "no"
) -> TableChangeReader:
    """Returns the changes of single tables of a destination, for jobs.

    ``archived``: whether to read what the store has no longer from its archive, if there is one on this machine's
    configuration. ``release``: fetched segments are removed when the batch that needs them ends; ``keep``: when this
    process ends, for readers that look at them later.
    """
    if config.store.kind == "file":
        from cdc.batches.table_batches import TableBatches

        if archived == "no" or config.store.archive.url is None:
            return TableBatches(config, meta)
        from cdc.copies.archive.reader import ArchivedReader

        return TableBatches(config, meta, lambda base: ArchivedReader(config, base, keep=archived == "keep"))
    from cdc.client.batches import RemoteTableBatches

    return RemoteTableBatches(connect(config))


def find_obstacle(
    config: DestinationConfig, owner: str, until: datetime | None = None
) -> LeaseHeldError | StoreIncompleteError | None:
    """Returns the error with which a get of this owner would end if it did not wait; None if nothing is in its way. See
    :func:`cdc.batches.waiting.obstacle`."""
    if config.store.kind == "file":
        from cdc.batches.waiting import obstacle

        return obstacle(config, owner, until)
    from cdc.client.batches import RemoteBatchService

    return RemoteBatchService(connect(config), config.batch).obstacle(owner, until)


def captured_tables(config: DestinationConfig, reader: Store) -> list[str]:
    """Returns the tables that capture knows, sorted: those of the newest schemas, and those whose changes it has
    stored."""
    names = set(reader.table_names())
    schemas = reader.schemas(reader.last_seq() or 0)
    if schemas is not None:
        names.update(schemas[1].tables)
    return sorted(name for name in names if config.tables.includes(*split_table(name)))


def connect(config: DestinationConfig) -> Connection:
    """Returns the connection to the server of a destination; nothing is sent yet. The process then reads files that
    URIs of this server name. Raises ConfigError if the token or the certificates cannot be had, or the store is in
    the memory of a server."""
    if config.store.kind == "memory":
        raise no_disk(config.store.kind)

    store = config.store
    assert store.url is not None  # the configuration was checked
    ca = None
    if store.ca_file is not None:
        try:
            ca = store.ca_file.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not in PEM format"
            raise ConfigError(
                f"{store.ca_file} cannot be read: {reason}",
                place="store.ca_file",
                remedy="Give the file with the certificate of the CA (PEM).",
            ) from None
    return remember(Connection(store.url, config.name, server_token(store), ca, store.retry_for_s))

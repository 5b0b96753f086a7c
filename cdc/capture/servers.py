"""The servers of a source: the one that is captured, and the standbys to which capture moves if that one is gone."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, SourceUnavailableError
from cdc.base.log import get_logger
from cdc.capture.failover import find_move
from cdc.config import DestinationConfig
from cdc.meta import SourceIdentity, open_meta
from cdc.source.connection import connect
from cdc.source.folder import BinlogFolder
from cdc.source.preflight import require_source
from cdc.source.resume import Resume
from cdc.source.server import Connection, Source, describe, read_uuid

if TYPE_CHECKING:
    from cdc.source.folder import BinlogFolder

log = get_logger(__name__)

_RETRY_S = 1.0


class SourceServers:
    """Connects to the server that is captured, or to a standby that can take its place; or opens the folder of its
    binlog files."""

    def __init__(self, config: DestinationConfig) -> None:
        self._config = config
        self.current = config
        """The configuration with the server of the last connection as its source."""
        self._resume: tuple[int, Resume] | None = None

    def take_resume(self, last_seq: int | None) -> Resume | None:
        """Returns the position at which capture goes on if :meth:`connect` has moved to another server, and the store
        still ends at ``last_seq``."""
        resume, self._resume = self._resume, None
        return None if resume is None or resume[0] != last_seq else resume[1]

    def connect(self, stop: threading.Event, last_seq: int | None) -> Source:
        """Returns a connection to a server that has passed the preflight.

        The server that was captured last comes first. If it does not answer for ``source.standby_after_s``, the others
        are tried in the order of the configuration; the first one that has everything that the store has, which ends at
        ``last_seq``, is taken.

        Raises SourceUnavailableError, SourceRefusedError, ConfigError. If a standby answers and cannot be used, and
        none may be usable later, raises its error.
        """
        self._resume = None
        if self._config.source.folder is not None:
            folder = open_folder(self._config)
            self.current = self._config.model_copy(update={"source": folder.source})
            return folder
        if not self._config.source.standbys:
            return self._open(self._config)
        identity = open_meta(self._config).source()
        config = self._config.at_server(None if identity is None else identity.address)
        until = time.monotonic() + self._config.source.standby_after_s
        while True:
            try:
                return self._open(config)
            except SourceUnavailableError as error:
                if identity is None or last_seq is None or stop.is_set():
                    raise
                if time.monotonic() >= until:
                    gone = error
                    break
                log.warning("the source does not answer", error=str(error))
                stop.wait(_RETRY_S)
        return self._connect_standby(identity, last_seq, gone)

    def _connect_standby(self, identity: SourceIdentity, last_seq: int, gone: SourceUnavailableError) -> Source:
        former = self._config.at_server(identity.address).source.address
        failures: list[CdcError] = []
        for source in self._config.source.servers():
            if source.address == former:
                continue
            log.warning("trying another server", server=source.address, former=former)
            conn = None
            try:
                conn = self._open(self._config.at_server(source.address))
                resume = find_move(self.current, conn, describe(conn), identity, last_seq)
                self._resume = None if resume is None else (last_seq, resume)
                return conn
            except CdcError as error:
                failures.append(error)
                log.warning("this server cannot be captured", server=source.address, error=str(error))
                if conn is not None:
                    conn.close()
        raise next((failure for failure in failures if failure.retryable), failures[0] if failures else gone) from gone

    def _open(self, config: DestinationConfig) -> Connection:
        conn = connect(config.source)
        try:
            require_source(config, conn)
            bound = config.source.bound_to(read_uuid(conn))
        except BaseException:
            conn.close()
            raise
        self.current = config.model_copy(update={"source": bound})
        return conn


def open_folder(config: DestinationConfig) -> BinlogFolder:
    """Opens the folder of binlog files that is the source. If the store was captured from these files, or from the
    server that wrote them, they have the identity that is known; its proof compares their bytes.

    Raises SourceUnavailableError, SourceRefusedError, DamagedError.
    """
    folder = BinlogFolder(config.source)
    identity, info = open_meta(config).source(), folder.describe()
    ours = identity is not None and (identity.flavor, identity.base_name) == (info.flavor, folder.base)
    uuid = identity.server_uuid if identity is not None and ours else info.server_uuid
    return BinlogFolder(config.source.bound_to(uuid))

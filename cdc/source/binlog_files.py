"""The questions of capture to a source without a server: a folder of binlog files.

The functions of :mod:`~cdc.source.server` and :mod:`~cdc.source.history` that take a ``Source`` answer for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc.binlog.gtids import Flavor, GtidSet
    from cdc.binlog.positions import BinlogPosition
    from cdc.source.server import BinlogFileInfo, ClockProbe, ServerInfo


class BinlogFiles(ABC):
    """A folder of binlog files. :class:`~cdc.source.folder.BinlogFolder` implements it."""

    address: str
    """The folder's path, for messages."""
    open = True
    """True, like that of an open connection."""

    @abstractmethod
    def describe(self) -> ServerInfo:
        """Returns the server that wrote the files, as far as they tell."""

    @abstractmethod
    def files(self) -> list[BinlogFileInfo]:
        """Returns the files, oldest first. A compressed one before the newest has the largest size that is possible."""

    @abstractmethod
    def end(self) -> BinlogPosition:
        """Returns the end of the last whole event."""

    @abstractmethod
    def probe(self) -> ClockProbe:
        """Returns the time of the newest event, which stands in for a clock, and the end of the last whole event."""

    @abstractmethod
    def executed_gtids(self, flavor: Flavor) -> GtidSet | None:
        """Returns the GTIDs of all transactions before :meth:`end`; None if they have none. Reads the newest file."""

    @abstractmethod
    def require(self, position: BinlogPosition, *, first: bool) -> None:
        """Raises an error unless the files have a position: ConfigError if it is that of ``source.start`` (``first``),
        IdentityError or SourceRefusedError if the store ends there, SourceUnavailableError if the file may be being
        copied."""

    @abstractmethod
    def close(self) -> None:
        """Ends the questions."""

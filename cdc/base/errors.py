"""The errors that Towpath raises on purpose.

The first level of the tree says whether another try may succeed::

    CdcError
    ├── RetryableError                 exit code 1
    │   ├── SourceUnavailableError       the source cannot be reached, or the connection broke
    │   ├── CorruptStreamError           an event from the network fails its checksum
    │   ├── LeaseHeldError               another owner holds the batch, the destination or the lock
    │   ├── StoreIncompleteError         the store may still lack transactions from before the time limit
    │   ├── LakeBehindError              the lake does not have all transactions from before the time limit yet
    │   ├── MergeFailedError             a table of the batch could not be merged; the batch was rolled back
    │   ├── TablesLeftOutError           a run has applied everything but parked tables
    │   ├── StorageError                 the disk is full, a write or fsync failed
    │   ├── PeerUnavailableError         the server, master or standby at the other end is gone, or does not answer
    │   ├── SchemaChangedError           a table was altered while a snapshot of it was read
    │   ├── CatalogUnavailableError      the catalog of the Delta tables cannot be reached, or refuses
    │   ├── MetaUnavailableError         ZooKeeper cannot be reached, or the session with it was lost
    │   ├── NotLeaderError               another server of the cluster leads the destination, or none does now
    │   └── ChannelFullError             a channel has no room for a transaction, or cannot be made smaller
    └── PermanentError                 exit code 2
        ├── UsageError                   wrong arguments of a command or call
        ├── ConfigError                  a wrong key or value in the configuration file
        ├── SourceRefusedError           the server cannot be captured as it is set up
        ├── IdentityError                the server is not the one that the store was captured from
        │   └── LostTransactionsError      after a failover, the new master lacks transactions that the store has
        ├── UnsupportedError             an event, a type or a statement that Towpath does not handle
        │   ├── UnsupportedEventError
        │   ├── UnsupportedTypeError
        │   ├── UnsupportedDdlError
        │   └── NeedsSnapshotError         only the server knows a table's rows now: it needs a snapshot
        ├── DamagedError                 a segment, index, meta file or manifest fails its check
        ├── VersionError                 a file was written by a newer Towpath
        ├── StoreLimitError              a transaction is larger than the store can ever hold
        ├── MessageTooLargeError         a message is larger than Kafka takes
        ├── StoreClosedError             the store or channel was closed
        ├── TransactionStateError        a channel's transaction was used in a wrong state, or left open
        ├── BatchError                   the batch protocol was not followed
        │   ├── CutOffError                retention removed transactions that this reader has not read
        │   ├── BatchOrderError            another batch has to be acked or rolled back first
        │   └── TokenError                 the token is wrong, replaced or expired
        └── TargetError                  the Delta table is missing, replaced or not Towpath's

A message is a sentence or a few that name the place, the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping

Intervals = tuple[tuple[int, int], ...]


class CdcError(Exception):
    """Base of all errors of Towpath.

    ``place`` names where the error is: a file and a position, a table, a key. ``remedy`` says what to do about it. Both
    are part of ``str(error)``.
    """

    exit_code = 1
    retryable = True

    def __init__(self, message: str, *, place: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.remedy = remedy

    def __str__(self) -> str:
        text = self.message if self.place is None else f"{self.place}: {self.message}"
        if self.remedy is None:
            return text
        end = "" if text.endswith((".", "!", "?")) else "."
        return f"{text}{end} {self.remedy}"


class RetryableError(CdcError):
    """Another try may succeed later."""


class SourceUnavailableError(RetryableError):
    """The source cannot be reached, or the connection broke."""


class CorruptStreamError(RetryableError):
    """An event from the network fails its checksum; reading it again may give the right bytes."""


class LeaseHeldError(RetryableError):
    """Another owner holds the batch, the destination or the lock. The message names the owner and the expiry."""


class StoreIncompleteError(RetryableError):
    """The store may still lack transactions from before a time limit. The message says up to when it is complete."""


class LakeBehindError(RetryableError):
    """The store has transactions from before a time limit that are not in the lake yet."""


class SchemaChangedError(RetryableError):
    """A table was altered, renamed or dropped while a snapshot of it was read. The snapshot has to begin anew."""


class MergeFailedError(RetryableError):
    """A batch could not be merged and was rolled back."""


class TablesLeftOutError(RetryableError):
    """A run has applied and acked everything but the changes of tables that are parked."""


class StorageError(RetryableError):
    """The operating system refused a write, a flush or a read, or the disk is full."""


class PeerUnavailableError(RetryableError):
    """The store at the other end (a server, master or standby) cannot be reached, or the connection to it broke."""


class CatalogUnavailableError(RetryableError):
    """The catalog of the Delta tables cannot be reached, or refuses a statement. The tables themselves are whole."""


class MetaUnavailableError(RetryableError):
    """The meta cannot be reached, or the right to change it was lost. It holds the old state or the new one, whole."""


class NotLeaderError(RetryableError):
    """This server of a cluster does not lead the destination. ``leader`` is the URL of the one that does; None if none
    does, or it is not known. Nothing was done."""

    def __init__(
        self, message: str, *, place: str | None = None, remedy: str | None = None, leader: str | None = None
    ) -> None:
        super().__init__(message, place=place, remedy=remedy)
        self.leader = leader


class ChannelFullError(RetryableError):
    """A channel had no room within its keep-alive time. Nothing of the transaction was put."""


class PermanentError(CdcError):
    """Another try fails too, until something is changed."""

    exit_code = 2
    retryable = False


class UsageError(PermanentError):
    """A command line or a call has wrong arguments."""


class ConfigError(PermanentError):
    """A key or value of the configuration is wrong. The message names file, key, value and remedy."""


class SourceRefusedError(PermanentError):
    """The server cannot be captured as it is set up (privileges, formats, retention)."""


class IdentityError(PermanentError):
    """The server, or its history, is not the one that the store was captured from."""


class LostTransactionsError(IdentityError):
    """After a failover, the new master lacks transactions that the store has, and will not get them. ``lost`` has their
    GTIDs, as intervals of numbers by source (:class:`cdc.binlog.gtids.GtidSet`)."""

    def __init__(
        self, message: str, *, place: str | None = None, remedy: str | None = None, lost: Mapping[str, Intervals]
    ) -> None:
        super().__init__(message, place=place, remedy=remedy)
        self.lost = lost


class UnsupportedError(PermanentError):
    """The stream holds something that Towpath does not handle. Nothing was skipped."""


class UnsupportedEventError(UnsupportedError):
    """A binlog event or statement that cannot be captured."""


class UnsupportedTypeError(UnsupportedError):
    """A column type that cannot be decoded. The message names table, column and type."""


class UnsupportedDdlError(UnsupportedError):
    """A DDL statement whose effect on a Delta table is not known. The message names the statement and the way out."""


class NeedsSnapshotError(UnsupportedError):
    """Only the server knows the rows that a table has now, so the table needs a snapshot.

    ``columns``: the source's names of the columns that have to be read, if the other ones are known; empty: all of
    them. ``seq``: the seq of the statement that has changed those.
    """

    def __init__(
        self,
        message: str,
        *,
        place: str | None = None,
        remedy: str | None = None,
        seq: int = 0,
        columns: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, place=place, remedy=remedy)
        self.seq = seq
        self.columns = columns


class DamagedError(PermanentError):
    """A file fails its check. The message names the file and the position; the file is unchanged."""


class VersionError(PermanentError):
    """A file has a format version that this version of Towpath does not know."""


class StoreLimitError(PermanentError):
    """A transaction is larger than the store can ever hold. Nothing was put."""


class MessageTooLargeError(PermanentError):
    """A message is larger than the configuration or Kafka's brokers allow. Nothing of its batch was acked."""


class StoreClosedError(PermanentError):
    """The store or channel was closed, possibly while the call waited."""


class TransactionStateError(PermanentError):
    """A channel's transaction was used in a wrong state, or left open."""


class BatchError(PermanentError):
    """The batch protocol was not followed."""


class CutOffError(BatchError):
    """Retention removed transactions that this reader has not read. The message names the gap."""


class GapChangedError(BatchError):
    """The gap that would be accepted is no longer the one that was shown. Nothing was changed."""


class BatchOrderError(BatchError):
    """Another batch has to be acked or rolled back first. The message names both."""


class TokenError(BatchError):
    """The fencing token is wrong, was replaced, or its lease expired."""


class TargetError(PermanentError):
    """The Delta table, or the folder where it belongs, is missing, replaced or not Towpath's."""

"""Every error that Towpath raises on purpose.

The tree; the first level answers whether trying again may help::

    CdcError
    ├── RetryableError                 exit code 1
    │   ├── SourceUnavailableError       no connection, or it broke
    │   ├── CorruptStreamError           bytes from the network fail their checksum
    │   ├── LeaseHeldError               another owner holds the batch, the destination or the lock
    │   ├── StoreIncompleteError         the store is not known to hold all that was committed before the time limit
    │   ├── MergeFailedError             a table of the batch could not be merged; the batch was rolled back
    │   ├── StorageError                 the disk is full, a write or fsync failed
    │   ├── PeerUnavailableError         the other end of a connection is gone, or does not answer
    │   ├── MetaUnavailableError         ZooKeeper cannot be reached, or the session with it was lost
    │   └── ChannelFullError             a channel has no room for what is committed, or cannot be made smaller
    └── PermanentError                 exit code 2
        ├── UsageError                   a command or call that makes no sense
        ├── ConfigError                  the configuration file
        ├── SourceRefusedError           the server cannot be captured as it is set up
        ├── IdentityError                the server is not the one the store belongs to
        ├── UnsupportedError             an event, a type or a statement Towpath does not handle
        │   ├── UnsupportedEventError
        │   ├── UnsupportedTypeError
        │   └── UnsupportedDdlError
        ├── DamagedError                 a segment, index, meta file or manifest fails its check
        ├── VersionError                 a file was written by a newer Towpath
        ├── StoreLimitError              a transaction that the store could never hold
        ├── StoreClosedError             a call to a store or channel that was closed
        ├── TransactionStateError        a channel's transaction used in a wrong state, or left open
        ├── BatchError                   the batch protocol was not followed
        │   ├── CutOffError                retention removed what this reader has not read
        │   ├── BatchOrderError            ack or rollback of another than the first outstanding batch
        │   └── TokenError                 a token that is wrong, replaced or expired
        └── TargetError                  the Delta table is not what it must be

A message is one sentence (or a few) that names the place, the value and the remedy.
"""

from __future__ import annotations


class CdcError(Exception):
    """Base of all errors of Towpath.

    ``place`` says where (a file and position, a table, a key), ``remedy`` what to do about it;
    both are part of ``str(error)``.
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
    """Trying again later may help."""


class SourceUnavailableError(RetryableError):
    """The source cannot be reached, or the connection broke."""


class CorruptStreamError(RetryableError):
    """An event from the network fails its checksum; reading it again may give the right bytes."""


class LeaseHeldError(RetryableError):
    """Somebody else owns the batch, the destination or the lock; the message names owner and expiry."""


class StoreIncompleteError(RetryableError):
    """The store is not known to hold everything that was committed before a time limit; says up to when it is."""


class MergeFailedError(RetryableError):
    """A batch could not be merged and was rolled back."""


class StorageError(RetryableError):
    """The operating system refused a write, a flush or a read."""


class PeerUnavailableError(RetryableError):
    """The store at the other end, master or standby, cannot be reached, or the connection to it broke."""


class MetaUnavailableError(RetryableError):
    """The meta cannot be reached, or the right to change it was lost; it holds the old state or the new, no mixture."""


class ChannelFullError(RetryableError):
    """A channel has no room within its keep-alive time; nothing of the transaction was put."""


class PermanentError(CdcError):
    """Trying again will not help: something has to be changed first."""

    exit_code = 2
    retryable = False


class UsageError(PermanentError):
    """A command line or a call that makes no sense."""


class ConfigError(PermanentError):
    """A key or value of the configuration is wrong; names file, key, value and remedy."""


class SourceRefusedError(PermanentError):
    """The server cannot be captured as it is set up (privileges, formats, retention)."""


class IdentityError(PermanentError):
    """The server, or its history, is not the one that the store belongs to."""


class UnsupportedError(PermanentError):
    """Something in the stream that Towpath does not handle; nothing was skipped."""


class UnsupportedEventError(UnsupportedError):
    """A binlog event or statement that cannot be captured."""


class UnsupportedTypeError(UnsupportedError):
    """A column type that cannot be decoded; names table, column and type."""


class UnsupportedDdlError(UnsupportedError):
    """A DDL statement whose effect on a Delta table is not known; names it and the way out."""


class DamagedError(PermanentError):
    """A file fails its check; names file and position. Nothing of it was changed."""


class VersionError(PermanentError):
    """A file carries a format version that this Towpath does not know."""


class StoreLimitError(PermanentError):
    """A transaction is larger than the store could ever hold; nothing was put."""


class StoreClosedError(PermanentError):
    """The store or channel was closed, perhaps while the call waited."""


class TransactionStateError(PermanentError):
    """A channel's transaction was used in a wrong state, or left open."""


class BatchError(PermanentError):
    """The batch protocol was not followed."""


class CutOffError(BatchError):
    """Retention removed transactions that this reader has not read; the message names the gap."""


class BatchOrderError(BatchError):
    """Another batch is due first; the message names both."""


class TokenError(BatchError):
    """The fencing token is wrong, was replaced, or its lease expired."""


class TargetError(PermanentError):
    """The Delta table, or its place, is not what it must be."""

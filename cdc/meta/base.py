"""The contract of every meta: a state that is read as a snapshot and changed as a whole.

An implementation provides :meth:`Meta.read` and :meth:`Meta.change`. Everything else uses only these two, and the rules
of :class:`~cdc.meta.state.Subscription`, so that they are the same in every implementation.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager

from cdc.base.closing import Closing
from cdc.base.errors import IdentityError
from cdc.meta.state import SourceIdentity, State, Subscription, check_name


class Meta(Closing):
    """Subscriptions, cursors and batches of one destination."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Returns the path or the address of the meta, for messages."""

    @abstractmethod
    def read(self) -> State:
        """Returns a consistent snapshot that the caller may change; an empty state if nothing was stored yet.

        Raises DamagedError, VersionError, StorageError, MetaUnavailableError.
        """

    @abstractmethod
    def change(self) -> AbstractContextManager[State]:
        """Yields the state under an exclusive lock, and stores it durably when the block ends without an exception.

        If the block raises, nothing is stored; an unchanged state is not written. Raises what :meth:`read` raises, and
        LeaseHeldError if another holder does not release the lock in time.
        """

    @abstractmethod
    def lock(self, name: str, what: str, *, wait_s: float = 0.0, shared: bool = False) -> AbstractContextManager[None]:
        """Holds the lock of this name while the block runs, among all processes that use this meta: exclusively, or
        ``shared`` with others that share it.

        ``name`` has only characters of file names; ``what`` describes the holder for messages. The lock is released
        when its process dies. It is independent of the lock of :meth:`change`. Raises LeaseHeldError if another holder
        does not release it within ``wait_s``.
        """

    def close(self) -> None:
        """Stores pending changes and closes connections. Closing twice does nothing."""

    # identity ---------------------------------------------------------------------------------------------------

    def source(self) -> SourceIdentity | None:
        """Returns the source that this destination belongs to; None before the first capture."""
        return self.read().source

    def bind_source(self, identity: SourceIdentity) -> SourceIdentity:
        """Binds the destination to a server and its history the first time, and compares them afterwards.

        ``start_gtid`` says where reading began; the first one is kept, and it is not compared. Returns the stored
        identity. Raises IdentityError that names the difference.
        """
        with self.change() as state:
            if state.source is None:
                state.source = identity
            bound = state.source
            require_same_source(bound, identity, self.place)
            return bound

    # subscriptions ----------------------------------------------------------------------------------------------

    def subscribe(self, name: str, table_filter: str | None = None) -> Subscription:
        """Adds a subscriber that begins at the store's first transaction.

        For an existing one, replaces its filter and keeps its cursor and batches.
        """
        with self.change() as state:
            subscription = state.subscriptions.setdefault(check_name(name), Subscription())
            subscription.filter = table_filter
            return subscription

    def subscriptions(self) -> dict[str, Subscription]:
        """Returns all subscriptions by name."""
        return self.read().subscriptions

    # cursor -----------------------------------------------------------------------------------------------------

    def cursor(self, name: str) -> int:
        """Returns the seq up to which the subscriber has acked; 0 at the beginning."""
        return self.read().subscription(name).acked_seq

    def update_cursor(self, name: str, acked_seq: int) -> None:
        """Sets the cursor."""
        with self.change() as state:
            state.subscription(name).acked_seq = acked_seq


class DurableMeta(Meta):
    """A meta that stores each change at once, and that several processes may share.

    One process may hold it and keep it in memory: see :class:`~cdc.meta.mixed.MixedMeta`.
    """

    @abstractmethod
    def hold(self, wait_s: float) -> None:
        """Makes this the one process that keeps the meta in memory, until :meth:`close`; does nothing if it is already.

        Raises LeaseHeldError, naming the holder, if another process still is after ``wait_s``.
        """

    @abstractmethod
    def held_locks(self) -> list[str]:
        """Returns the names of the locks (:meth:`lock`) that somebody holds now. Raises what :meth:`read` raises."""

    @abstractmethod
    def remove(self) -> list[str]:
        """Removes everything that this meta has stored: first its subscriptions and the source's identity, in one
        change, then the rest. It may be called again after a kill, and where nothing is stored.

        Returns the places of what others have stored beside it, which is left. Raises what :meth:`change` raises.
        """


_IDENTITY = {"server_uuid": "UUID", "flavor": "flavour", "base_name": "binlog base name", "epoch": "epoch"}


def require_same_source(bound: SourceIdentity, source: SourceIdentity, place: str) -> None:
    """Checks that ``source`` is the source of this destination. Raises IdentityError, naming the difference."""
    for key, what in _IDENTITY.items():
        bound_value, source_value = getattr(bound, key), getattr(source, key)
        if bound_value != source_value:
            raise IdentityError(
                f"this destination belongs to a source with {what} {bound_value!r}, but the server's is "
                f"{source_value!r}",
                place=place,
                remedy="It is another server, or has a new data folder. Connect to the former server, or create a new "
                "destination for this one.",
            )

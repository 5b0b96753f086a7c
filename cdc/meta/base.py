"""The contract of every meta: a state that is read as a snapshot and changed as a whole.

An implementation brings :meth:`Meta.read` and :meth:`Meta.change`; the operations that a user of Canal's meta manager
knows stand on these two, so that every implementation has them with the same rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from cdc.errors import IdentityError
from cdc.meta.state import Outstanding, SourceIdentity, State, Subscription, check_name


class Meta(ABC):
    """Subscriptions, cursors and batches of one destination."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it lies, for messages."""

    @abstractmethod
    def read(self) -> State:
        """A consistent snapshot, the caller's own. Empty where nothing was stored yet.

        Raises DamagedError, VersionError, StorageError, MetaUnavailableError.
        """

    @abstractmethod
    def change(self) -> AbstractContextManager[State]:
        """The state, exclusively; what the block made of it is stored durably when it ends without an exception,
        else nothing is. Unchanged states are not written.

        Raises what :meth:`read` raises, and LeaseHeldError when another holder does not let go in time.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of connections, and store what is not stored yet. Closing twice is nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # identity ---------------------------------------------------------------------------------------------------

    def source(self) -> SourceIdentity | None:
        """The source that this destination belongs to; None before the first capture."""
        return self.read().source

    def bind_source(self, identity: SourceIdentity) -> SourceIdentity:
        """Bind the destination to a server and its history, once; afterwards check that it is the same one.

        ``start_gtid`` tells where reading began: it is kept from the first time, not compared. Returns what is
        stored. Raises IdentityError naming what differs.
        """
        with self.change() as state:
            if state.source is None:
                state.source = identity
            known = state.source
            require_same_source(known, identity, self.place)
            return known

    # subscriptions ----------------------------------------------------------------------------------------------

    def subscribe(self, name: str, table_filter: str | None = None) -> Subscription:
        """Add a subscriber that begins at the store's first transaction. Subscribing again replaces its filter and
        keeps its cursor and batches."""
        with self.change() as state:
            found = state.subscriptions.setdefault(check_name(name), Subscription())
            found.filter = table_filter
            return found

    def unsubscribe(self, name: str) -> None:
        """Remove a subscriber with cursor and batches. Raises UsageError if there is none."""
        with self.change() as state:
            state.subscription(name)
            del state.subscriptions[name]

    def subscriptions(self) -> dict[str, Subscription]:
        """All subscribers by name."""
        return self.read().subscriptions

    # batches ----------------------------------------------------------------------------------------------------

    def add_batch(self, name: str, entry: Outstanding) -> None:
        """Record a batch as outstanding, after those that are. Raises BatchError for an id that is not new."""
        with self.change() as state:
            state.subscription(name).add(entry)

    def batch(self, name: str, batch: int) -> Outstanding | None:
        """An outstanding batch by id."""
        return self.read().subscription(name).find(batch)

    def remove_batch(self, name: str, batch: int) -> Outstanding:
        """Take away the first outstanding batch. Raises BatchOrderError, naming both, for another one."""
        with self.change() as state:
            return state.subscription(name).remove(batch)

    def first_batch(self, name: str) -> Outstanding | None:
        """The oldest outstanding batch."""
        return next(iter(self.batches(name)), None)

    def latest_batch(self, name: str) -> Outstanding | None:
        """The newest outstanding batch."""
        return next(reversed(self.batches(name)), None)

    def batches(self, name: str) -> list[Outstanding]:
        """All outstanding batches in their order."""
        return self.read().subscription(name).outstanding

    def clear_batches(self, name: str) -> list[Outstanding]:
        """Take away all outstanding batches; the cursor stays. Returns what was taken away."""
        with self.change() as state:
            found = state.subscription(name)
            return found.cut(found.outstanding[0].batch) if found.outstanding else []

    # cursor -----------------------------------------------------------------------------------------------------

    def cursor(self, name: str) -> int:
        """The seq up to which the subscriber has acked; 0 at the beginning."""
        return self.read().subscription(name).acked_seq

    def update_cursor(self, name: str, acked_seq: int) -> None:
        """Set the cursor."""
        with self.change() as state:
            state.subscription(name).acked_seq = acked_seq


class DurableMeta(Meta):
    """A meta whose changes outlive the process as soon as they are made, and which several processes may share. It can
    be held by one process that keeps it in memory: :class:`~cdc.event_store.periodic_meta.PeriodicMeta`."""

    @abstractmethod
    def hold(self, wait_s: float) -> None:
        """Become the one process that keeps this meta in memory, until :meth:`close`; nothing where it is already.
        Raises LeaseHeldError, naming the holder, where another one is after ``wait_s``."""


_IDENTITY = {"server_uuid": "UUID", "flavor": "flavour", "base_name": "binlog base name", "epoch": "epoch"}


def require_same_source(known: SourceIdentity, found: SourceIdentity, place: str) -> None:
    """Raises IdentityError, naming what differs, where ``found`` is not the source that a destination belongs to."""
    for key, what in _IDENTITY.items():
        had, has = getattr(known, key), getattr(found, key)
        if had != has:
            raise IdentityError(
                f"this destination belongs to a source with {what} {had!r}, but the server's is {has!r}",
                place=place,
                remedy="It is another server, or one with a new data folder. Connect to the former server, or write a "
                "new destination for this one.",
            )

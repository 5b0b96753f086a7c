"""Changes that wait for subscribers, for clients that watch many destinations with one request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cdc.base.errors import CdcError
from cdc.batches.waiting import find_waiting
from cdc.server.destinations import ServedDestination
from cdc.store.reader.look import StoreLook


class WatchedDestination(BaseModel):
    """A destination that a client watches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str = Field(repr=False)
    """The token of its subscriber."""
    after_seq: int = Field(default=0, ge=0)
    """Changes up to this seq are not told."""


class ChangesRequest(BaseModel):
    """The body of a request for changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    destinations: dict[str, WatchedDestination] = Field(min_length=1, max_length=10_000)
    wait_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class StoreWatch:
    """Finds destinations with changes that no batch has yet. A store that has not grown since the last look costs a
    look at two files; only after a change are its meta and its index read. Used in one thread at a time."""

    def __init__(self) -> None:
        self._looks: dict[str, StoreLook] = {}
        self._quiet: dict[tuple[str, str], tuple[Any, int]] = {}
        """By destination and subscriber: the end of the store at which nothing waited, and after which seq."""

    def look(
        self, destinations: Iterable[tuple[ServedDestination, str, int]]
    ) -> tuple[dict[str, int], dict[str, CdcError]]:
        """Returns, by destination, the seq up to which its store has been filled, for those that have a transaction of
        the subscriber after a seq; and the errors of those for which it cannot be told."""
        waiting: dict[str, int] = {}
        faults: dict[str, CdcError] = {}
        for served, subscriber, after_seq in destinations:
            store = served.config.store.path
            end = self._looks.setdefault(str(store), StoreLook(store)).end()
            key = (str(store), subscriber)
            quiet_end, quiet_seq = self._quiet.get(key, (None, 0))
            if end is None or (end == quiet_end and after_seq >= quiet_seq):
                continue
            try:
                seq = find_waiting(served.meta.read(), served.reader(), subscriber, after_seq)
            except CdcError as error:
                faults[served.name] = error
                continue
            if seq is None:
                self._quiet[key] = end, after_seq
            else:
                waiting[served.name] = seq
        return waiting, faults

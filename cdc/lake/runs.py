"""A run: merges and acks batch after batch, for ``cdc apply`` and for the task ``merge`` of the apply DAG.

A run begins with a batch that its caller has fetched. Each batch is acked by itself, with its own token, before the
next one is fetched; so at most one batch is outstanding, and whatever fails or is killed, acked batches stay acked. The
last batch of a run is left to the caller, who acks it or, if something else failed, rolls it back.

At its beginning a run tries each table once more that an error has parked.

A run ends

- when it is level: it has applied what the store had when the run began, or, with ``follow``, what the store has now;
- with a time limit, when everything that was committed before it is applied;
- after a batch, when ``run_for_s`` is spent. What still waits is left to the next run.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from cdc.base.errors import MergeFailedError
from cdc.base.log import get_logger
from cdc.batches.manifest import TableResult
from cdc.batches.results import read_results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.batches.lease import Lease
    from cdc.config import DestinationConfig

_log = get_logger(__name__)


class Steps(Protocol):
    """The steps of a run. Implemented by ``cdc.lake.pipeline``, and by a fake in ``cdc.testing.pipeline``."""

    def fetch_following(
        self, config: DestinationConfig, owner: str, acked: Lease, until: datetime | None, wait_s: float | None
    ) -> Lease | None: ...

    def merge(self, config: DestinationConfig, lease: Lease) -> Sequence[Any]: ...

    def finalize(self, config: DestinationConfig, lease: Lease, ok: bool, results: Any) -> None: ...

    def retry_parked(self, config: DestinationConfig, lease: Lease | None = None) -> Sequence[Any]: ...

    def session(self, config: DestinationConfig) -> AbstractContextManager[None]: ...

    def stored_seq(self, config: DestinationConfig) -> int: ...

    def next_seq(self, config: DestinationConfig) -> int | None: ...


@dataclass(frozen=True)
class RunLimits:
    """The limits of a run."""

    until: datetime | None = None
    """Apply exactly what was committed before this time (aware); None: no time limit."""
    run_for_s: float | None = None
    """Begin no further batch after this many seconds; None: no limit. Not with ``until``, because such a run says that
    everything before that time is applied."""
    follow: bool = False
    """Go on until the store has nothing more, rather than to where the store ended when the run began. Under steady
    traffic such a run may never end, and its batches become small."""
    wait_s: float | None = None
    """With ``until``: how long to wait until the store is complete; None: ``batch.until_wait_s``."""

    def __post_init__(self) -> None:
        assert self.until is None or (self.run_for_s is None and not self.follow)


@dataclass(frozen=True)
class Merged:
    """A batch and the results of its merge."""

    lease: Lease
    results: list[TableResult]


class Listener(Protocol):
    """Is told what a run does."""

    def began(self, lease: Lease) -> None:
        """The merge of a batch begins."""

    def merged(self, batch: Merged) -> None:
        """A batch was merged."""

    def acked(self, batch: Merged) -> None:
        """A batch was acked by the run."""


class RunListener:
    """Does nothing, for listeners that want to hear of some events only."""

    def began(self, lease: Lease) -> None:
        pass

    def merged(self, batch: Merged) -> None:
        pass

    def acked(self, batch: Merged) -> None:
        pass


class Run:
    """One run of an owner."""

    def __init__(
        self,
        steps: Steps,
        config: DestinationConfig,
        owner: str,
        limits: RunLimits,
        listener: Listener | None = None,
    ) -> None:
        self._steps, self._config, self.owner, self._limits = steps, config, owner, limits
        self._listener: Listener = RunListener() if listener is None else listener
        self._stopped = False
        self._deadline = float("inf")
        self._level_seq: int | None = None
        self.merging: Lease | None = None
        """The batch whose merge is under way or has failed."""
        self.spent = False
        """Whether the run ended because its time was spent, with transactions waiting."""

    def merge(self, lease: Lease) -> Merged | None:
        """Merges the batch and those that follow it, and acks all but the last.

        Returns the last batch, merged and not acked; None if the last one turned out to be the last only after it was
        acked. Raises what a merge raises; then :attr:`merging` is the batch to roll back. Raises StoreIncompleteError
        if the store may still get transactions from before the time limit, and TokenError if another process of this
        owner has gone on; nothing is outstanding then.
        """
        limits, steps, config = self._limits, self._steps, self._config
        if limits.run_for_s is not None:
            self._deadline = time.monotonic() + limits.run_for_s
        if limits.until is None and not limits.follow:
            self._level_seq = steps.stored_seq(config)
        current: Lease | None = lease
        with steps.session(config):
            steps.retry_parked(config, lease)
            while current is not None:
                merged = self._merge(current)
                if self._is_last():
                    return merged
                steps.finalize(config, merged.lease, True, merged.results)
                self._listener.acked(merged)
                wait_s = limits.wait_s if limits.until is not None else 0.0
                current = steps.fetch_following(config, self.owner, merged.lease, limits.until, wait_s)
        return None

    def stop(self) -> None:
        """Lets the run begin no further batch. Safe in signal handlers."""
        self._stopped = True

    def _merge(self, lease: Lease) -> Merged:
        self.merging = lease
        if self._stopped:
            raise MergeFailedError(f"the run was stopped before batch {lease.batch} was merged")
        self._listener.began(lease)
        merged = Merged(lease, list(read_results(self._steps.merge(self._config, lease))))
        self.merging = None
        self._listener.merged(merged)
        return merged

    def _is_last(self) -> bool:
        """Whether the run ends with the batch that was just merged."""
        if self._stopped:
            return True
        if self._limits.until is not None:
            return False  # only a fetch tells whether the store is complete up to the time
        following = self._steps.next_seq(self._config)
        if following is None or (self._level_seq is not None and following > self._level_seq):
            return True
        if time.monotonic() < self._deadline:
            return False
        self.spent = True
        _log.info("the run's time is spent; the next run takes what waits", run_for_s=self._limits.run_for_s)
        return True

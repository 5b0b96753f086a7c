"""A fake of ``cdc.lake.pipeline`` without store, meta and Spark, for tests of its callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cdc.base.errors import LeaseHeldError, StoreIncompleteError, TokenError
from cdc.batches.lease import Lease
from cdc.batches.manifest import Acked, Manifest, Position, Positions
from cdc.batches.results import read_results
from cdc.config import DestinationConfig


def sample_manifest(batch: int, destination: str = "shop", rows: int = 1) -> Manifest:
    """Returns a manifest of ``rows`` transactions of one row each, without segments."""
    first = (batch - 1) * rows + 1
    return Manifest(
        destination=destination,
        subscriber="apply",
        batch=batch,
        epoch=0,
        server_uuid="00000000-0000-0000-0000-000000000000",
        after_seq=first - 1,
        first_seq=first,
        last_seq=first + rows - 1,
        transactions=rows,
        row_events=rows,
        bytes=100 * rows,
        ddl=False,
        tables=("shop.orders",),
        schema_path=None,
        ranges=(),
        positions=Positions(
            first=Position(file="binlog.000001", pos=first), last=Position(file="binlog.000001", pos=first + rows - 1)
        ),
    )


class FakePipeline:
    """Returns ``waiting`` batches, one at a time, by the rules of the batch protocol.

    ``acked`` and ``rolled_back`` record the batches' ids in order, ``calls`` every called step, ``limits`` the
    ``until`` of each fetch, ``sessions`` the number of sessions for merges, and ``retries`` that of the tries
    of parked tables. ``obstacles`` has what is in the way of the next fetches. A function in ``fail`` under a step's
    name (``fetch``, ``merge``, ``finalize``, ``release``) is called in that step, and may raise. Appending to
    ``waiting`` puts a transaction into the store.
    """

    def __init__(self, folder: Path, batches: int = 1) -> None:
        self.folder = folder
        self.waiting = [sample_manifest(number) for number in range(1, batches + 1)]
        self.acked: list[int] = []
        self.rolled_back: list[int] = []
        self.calls: list[str] = []
        self.owners: list[str] = []
        self.recorded: dict[int, Any] = {}
        self.fail: dict[str, Callable[[], None]] = {}
        self.limits: list[datetime | None] = []
        self.sessions = 0
        self.retries = 0
        self.altered: set[str] = set()
        self.obstacles: list[LeaseHeldError | StoreIncompleteError | None] = []
        self._tokens: dict[int, str] = {}
        self.leases: dict[tuple[int, str], Lease] = {}

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            self.fail[name]()

    def fetch(
        self, config: DestinationConfig, owner: str, until: datetime | None = None, wait_s: float | None = None
    ) -> Lease | None:
        """Returns the first waiting batch with a new token; None if there is none."""
        self._step("fetch")
        self.owners.append(owner)
        self.limits.append(until)
        if not self.waiting:
            return None
        manifest = self.waiting[0]
        path = self.folder / f"{manifest.batch}.json"
        path.write_text(manifest.model_dump_json(), encoding="utf-8")
        token = self._tokens[manifest.batch] = f"token-{len(self.calls)}"
        lease = Lease(manifest, path, token, datetime.now(UTC) + timedelta(hours=1))
        self.leases[manifest.batch, lease.fingerprint] = lease
        return lease

    def obstacle(self, config: DestinationConfig, owner: str, until: datetime | None = None) -> Any:
        """Returns the error in ``obstacles`` that is due; None if there is none."""
        return self.obstacles.pop(0) if self.obstacles else None

    def fetch_following(
        self, config: DestinationConfig, owner: str, acked: Lease, until: datetime | None, wait_s: float | None
    ) -> Lease | None:
        """Like :meth:`fetch`, after the ack of a batch. Raises TokenError if something else happened since."""
        if self._tokens or self.acked[-1:] != [acked.batch]:
            raise TokenError(f"another process has taken the batches after batch {acked.batch}")
        return self.fetch(config, owner, until)

    def retry_parked(self, config: DestinationConfig, lease: Lease | None = None) -> list[Any]:
        """Counts the calls; no table is parked here."""
        self.retries += 1
        return []

    def require_none_left_out(self, config: DestinationConfig, say: Callable[[str], None]) -> None:
        """Does nothing; no table is parked here. A test may set ``fail["left_out"]``."""
        if "left_out" in self.fail:
            self.fail["left_out"]()

    @contextmanager
    def session(self, config: DestinationConfig) -> Iterator[None]:
        """Counts the sessions."""
        self.sessions += 1
        yield

    def stored_seq(self, config: DestinationConfig) -> int:
        """Returns the last seq of the waiting batches."""
        return max((manifest.last_seq for manifest in self.waiting), default=0)

    def next_seq(self, config: DestinationConfig) -> int | None:
        """Returns the first seq of the batch that is due after the outstanding ones."""
        due = [manifest.first_seq for manifest in self.waiting if manifest.batch not in self._tokens]
        return min(due, default=None)

    def resume(self, config: DestinationConfig, batch: int, fingerprint: str) -> Lease:
        """Returns the lease that :meth:`fetch` returned, valid or not."""
        return self.leases[batch, fingerprint]

    def merge(self, config: DestinationConfig, lease: Lease) -> Sequence[Any]:
        """Merges nothing. Raises TokenError for a token that is not the latest."""
        self._check(lease)
        self._step("merge")
        return self.results

    results: Sequence[Any] = ()

    def finalize(self, config: DestinationConfig, lease: Lease, ok: bool, results: Any = None) -> None:
        """Acks or rolls back; a repetition changes nothing."""
        self._step("finalize")
        batch = lease.manifest.batch
        if (self.acked if ok else self.rolled_back)[-1:] == [batch] and batch not in self._tokens:
            return
        self._check(lease)
        if ok:
            del self._tokens[batch]
            self.waiting.pop(0)
            self.acked.append(batch)
            self.recorded[batch] = results
        else:
            self._roll_back(batch)

    def acked_manifests(self, config: DestinationConfig, after_batch: int) -> list[Manifest]:
        """Returns the manifests of the acked batches with the results of their merges."""
        manifests = {lease.batch: lease.manifest for lease in self.leases.values()}
        return [
            manifests[batch].model_copy(
                update={"acked": Acked(time=datetime.now(UTC), tables=read_results(self.recorded[batch]))}
            )
            for batch in self.acked
            if batch > after_batch
        ]

    def altered_tables(self, before: Manifest | None, after: Manifest) -> set[str]:
        """Returns the tables that a test has named."""
        return self.altered

    def release(self, config: DestinationConfig, owner: str) -> list[int]:
        """Rolls back all outstanding batches."""
        self._step("release")
        gone = sorted(self._tokens)
        for batch in gone[:1]:
            self._roll_back(batch)
        return gone

    def _roll_back(self, first: int) -> None:
        self.rolled_back.append(first)
        self._tokens = {batch: token for batch, token in self._tokens.items() if batch < first}

    def stop(self) -> None:
        """Records only the call."""
        self.calls.append("stop")

    def _check(self, lease: Lease) -> None:
        if lease.token != self._tokens.get(lease.manifest.batch):
            raise TokenError(f"the token of batch {lease.manifest.batch} is not the latest")

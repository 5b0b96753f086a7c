"""Store, meta and lake, each kept, lost or restored from an older copy: the table is equal, or the run is refused.

The merge is a few lines over a real Delta log. Each transaction is a row with its seq, which shows lost and double
transactions. The refusals are those of the product: of the batch service, and of the lake's proof before a merge.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdc.base.errors import CdcError, CutOffError, TargetError
from cdc.base.targets import application_id
from cdc.batches.manifest import TableResult
from cdc.batches.manifest_files import load_manifest
from cdc.batches.service import BatchService
from cdc.lake.delta.proof import prove, prove_idle
from cdc.lake.delta.tables import target_of
from cdc.store.formats.state import Beginning
from cdc.store.reader.batch_builder import Limits
from tests.support.unit_batches import NumberStore, make_config, make_service
from tests.unit.lake.delta.test_proof import make

TABLE = "shop.orders"
FIRST, OLDER, LOSS, END = 2, 10, 20, 25
"""The store begins at 2; copies are made at 10; the loss is at 20, when all is applied; the source continues to 25."""


def begins(seq: int, reason: str = "first start") -> Beginning:
    return Beginning(seq, "binlog.000001", seq, None, 1, reason)  # type: ignore[arg-type]


@dataclass
class World:
    """A destination whose table has a row for each transaction."""

    folder: Path

    def __post_init__(self) -> None:
        self.config = make_config(self.folder)
        self.place = target_of(self.config, TABLE)

    @property
    def meta(self) -> Path:
        return self.config.meta.path

    @property
    def lake(self) -> Path:
        return Path(self.place.path)

    def apply(self, store: NumberStore) -> None:
        """Applies all that the store has."""
        service = make_service(self.config, store)
        while (lease := service.get("me", limits=Limits(max_transactions=100))) is not None:
            try:
                result = self.merge(service, store, lease.manifest.after_seq, lease.manifest.last_seq, lease.batch)
            except CdcError:
                service.rollback(lease.batch, lease.token)
                raise
            service.ack(lease.batch, lease.token, results=[result])

    def merge(
        self, service: BatchService, store: NumberStore, after_seq: int, last_seq: int, batch: int
    ) -> TableResult:
        subscription = service.subscription()
        loaded = load_manifest(service.manifests.path("apply", batch))
        prove_idle(self.config, loaded, subscription, ())
        state = self.place.state()
        prove(self.place, state, loaded, subscription, created_here=False)
        if state is None:
            assert loaded.store_begins is not None
            make(self.place, **{"towpath.since_seq": str(max(after_seq, loaded.store_begins.seq))})
            state = self.place.state()
        assert state is not None
        beginning = store.beginning()
        assert beginning is not None
        new = list(range(max(after_seq, state.applied_seq, beginning.seq) + 1, last_seq + 1))
        if new and last_seq > state.applied_seq:
            entry = {"destination": "shop", "table": TABLE, "batch": batch, "epoch": 0, "server_uuid": "u"}
            entry |= {"first_seq": state.applied_seq, "after_seq": after_seq, "last_seq": last_seq, "generation": 0}
            write_deltalake(
                self.place.path,
                pa.table({"id": new}),
                mode="append",
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(application_id("shop", TABLE), last_seq)],
                    custom_metadata={"userMetadata": json.dumps(entry)},
                ),
            )
        state = self.place.state()
        assert state is not None
        return TableResult(table=TABLE, delta_version=state.version, delta_id=state.id, applied_seq=state.applied_seq)

    def rows(self) -> list[int]:
        return sorted(DeltaTable(self.place.path).to_pyarrow_table()["id"].to_pylist())


STORES = {
    "kept": NumberStore(last=END, begins=begins(FIRST)),
    "older copy": NumberStore(last=END, begins=begins(FIRST)),  # capture has read the rest again
    "lost, read again": NumberStore(last=END, begins=begins(FIRST, "started again")),
    "lost, begun later": NumberStore(last=END, begins=begins(LOSS + 2, "started again")),
    "kept, retention at work": NumberStore(last=END, begins=begins(FIRST), removed=8),
}
FATES = ("kept", "older copy", "lost")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the destination at the loss, with older copies of meta and lake beside it."""
    world = World(tmp_path_factory.mktemp("losses"))
    for last, name in ((OLDER, "older"), (LOSS, "now")):
        world.apply(NumberStore(last=last, begins=begins(FIRST)))
        for part in (world.meta, world.lake):
            shutil.copytree(part, world.folder / name / part.relative_to(world.folder))
    assert world.rows() == list(range(FIRST + 1, LOSS + 1))
    return world.folder


def suffer(before: Path, folder: Path, meta: str, lake: str) -> World:
    world = World(folder)
    for fate, part in ((meta, world.meta), (lake, world.lake)):
        if fate != "lost":
            copy = before / ("now" if fate == "kept" else "older") / part.relative_to(folder)
            shutil.copytree(copy, part)
    return world


@pytest.mark.parametrize(("store", "meta", "lake"), list(product(STORES, FATES, FATES)))
def test_equal_or_refused(before: Path, tmp_path: Path, store: str, meta: str, lake: str) -> None:
    world = suffer(before, tmp_path, meta, lake)
    first, refused = STORES[store], None
    try:
        world.apply(first)
    except (CutOffError, TargetError) as error:
        refused = error
    outcome = "equal" if refused is None else type(refused).__name__
    assert outcome == expected(store, meta, lake), refused
    if (store, meta, lake) == ("lost, begun later", "lost", "lost"):
        assert world.rows() == list(range(LOSS + 3, END + 1)), "a destination that starts for the first time"
    elif refused is None:
        assert world.rows() == list(range(FIRST + 1, END + 1))
    else:
        assert "accept-gap" in str(refused) or "were removed" in str(refused)


def expected(store: str, meta: str, lake: str) -> str:
    """Returns the outcome by the table of docs/how-to/restoring.md."""
    if store == "lost, begun later":
        # Nothing proves the transactions before its beginning. If meta and lake are lost too, nothing knows of them.
        if meta != "lost":
            return "CutOffError"
        return "equal" if lake == "lost" else "TargetError"
    if store == "kept, retention at work" and meta == "lost":
        return "TargetError" if lake == "lost" else "equal"
    if lake == "kept" or meta == "lost":
        return "equal"
    if lake == "older copy":
        return "equal" if meta == "older copy" else "TargetError"
    return "TargetError"

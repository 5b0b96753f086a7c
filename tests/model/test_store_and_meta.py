"""Random puts, gets, acks, rollbacks, kills and reopenings of store and meta, against a model of a few lines.

``TOWPATH_MODEL_STEPS`` sets how many steps are taken (1,000 in ``make test``, more in ``make test-soak``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cdc.base.errors import BatchOrderError, TokenError
from cdc.batches.lease import Lease
from cdc.batches.manifest_files import load_manifest
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.event_store.transaction import Transaction
from cdc.store.formats.index import read_entries
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.log import RelayLog
from cdc.testing.transactions import make_transactions
from tests.support.unit_batches import IDENTITY, make_config

STEPS = int(os.environ.get("TOWPATH_MODEL_STEPS", "1000"))
STEPS_EACH = 50
OWNER = "model"
POOL: list[Transaction] = make_transactions(300, rows=2, tables=("shop.orders", "shop.items"), ddl_every=7)
SEGMENT_BYTES = 1500
"""Size of a segment with a few transactions, so that batches span several. Smaller than a configuration allows."""


@dataclass
class Model:
    """The model: transactions are numbers, from 0."""

    put: int = 0
    acked: int = 0
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # id, first, last (exclusive)
    newest_id: int = 0

    def next_batch(self, most: int) -> tuple[int, int] | None:
        first = last = self.batches[-1][2] if self.batches else self.acked
        while last < self.put and last - first < most and not (POOL[last].ddl and last > first):
            last += 1
            if POOL[last - 1].ddl:
                break
        return (first, last) if last > first else None


class StoreAndMeta(RuleBasedStateMachine):
    """The real store and meta, and the model beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="towpath-model-"))
        self.generation = 0
        self.model = Model()
        self.leases: dict[int, Lease] = {}
        self.old_tokens: list[tuple[int, str]] = []

    @initialize()
    def begin(self) -> None:
        self.folder = self.base / "0"
        self.folder.mkdir()
        self._open()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.base)

    def _open(self) -> None:
        self.config: DestinationConfig = make_config(self.folder)
        self.store = RelayLog(self.config.store.path, destination="shop", segment_bytes=SEGMENT_BYTES)
        for table in ("shop.orders", "shop.items"):
            self.store.tables.number(table)
        self.service = BatchService(self.config)
        self.service.meta.bind_source(IDENTITY)
        self.begun = False

    def _append(self, transaction: Transaction, *, part: int | None = None) -> None:
        """Writes bytes and index entry as capture does; with ``part`` only so many bytes, and no entry."""
        if not self.begun:
            pos = transaction.position.pos - transaction.size_bytes
            self.offset = self.store.begin(
                0, transaction.source.name, pos, transaction.source.format_description, transaction.source.server_id
            )
            self.begun = True
        elif self.offset > SEGMENT_BYTES:
            self.offset = self.store.roll(0, transaction.position.pos - transaction.size_bytes)
        self.store.append(memoryview(transaction.data)[:part])
        if part is not None:
            return
        entry = transaction.entry.copy()
        entry["offset"] = self.offset
        self.offset += transaction.size_bytes
        self.store.publish(entry)

    # --- operations

    @rule(count=st.integers(1, 12))
    def put(self, count: int) -> None:
        for transaction in POOL[self.model.put : self.model.put + count]:
            self._append(transaction)
        self.store.flush()
        self.model.put = min(len(POOL), self.model.put + count)

    @rule(most=st.integers(1, 6))
    def get(self, most: int) -> None:
        lease = self.service.get(OWNER, limits=Limits(max_transactions=most), wait_s=0)
        if self.model.batches:
            assert lease is not None and lease.batch == self.model.batches[0][0]
            self.old_tokens.append((lease.batch, self.leases[lease.batch].token))
            self._same(lease, *self.model.batches[0][1:])
            self.leases[lease.batch] = lease
        else:
            self._new_batch(lease, most)

    @rule(most=st.integers(1, 6))
    def get_ahead(self, most: int) -> None:
        self._new_batch(self.service.get(OWNER, limits=Limits(max_transactions=most), wait_s=0, ahead=True), most)

    def _new_batch(self, lease: Lease | None, most: int) -> None:
        expected = self.model.next_batch(most)
        if expected is None:
            assert lease is None
            return
        assert lease is not None and lease.batch > self.model.newest_id
        self._same(lease, *expected)
        self.model.newest_id = lease.batch
        self.model.batches.append((lease.batch, *expected))
        self.leases[lease.batch] = lease

    def _same(self, lease: Lease, first: int, last: int) -> None:
        """Requires that the batch is these transactions, to the byte."""
        wanted = POOL[first:last]
        manifest = load_manifest(lease.manifest_path)
        assert (manifest.first_seq, manifest.last_seq) == (wanted[0].seq, wanted[-1].seq)
        assert manifest.ddl == wanted[0].ddl and manifest.transactions == len(wanted)
        assert set(manifest.tables) == {table for t in wanted for table in t.tables}
        data, seqs = b"", []
        for part in manifest.ranges:
            with open(part.path, "rb") as file:
                file.seek(part.offset)
                data += file.read(part.length)
            seqs += [int(seq) for seq in read_entries(Path(part.path), part.offset, part.length)["seq"]]
        assert seqs == [t.seq for t in wanted]
        assert data == b"".join(t.data for t in wanted)

    @precondition(lambda self: self.model.batches)
    @rule()
    def ack(self) -> None:
        batch, _, last = self.model.batches.pop(0)
        self.service.ack(batch, self.leases[batch].token)
        self.model.acked = last

    @precondition(lambda self: len(self.model.batches) > 1)
    @rule(data=st.data())
    def ack_another_than_the_first(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.model.batches[1:]))[0]
        with pytest.raises(BatchOrderError, match=rf"\b{batch}\b.*\b{self.model.batches[0][0]}\b"):
            self.service.ack(batch, self.leases[batch].token)

    @precondition(lambda self: any(b == o for b, *_ in self.model.batches for o, _ in self.old_tokens))
    @rule()
    def end_with_a_replaced_token(self) -> None:
        batch, token = next((b, t) for b, t in self.old_tokens if b in [batch[0] for batch in self.model.batches])
        with pytest.raises(TokenError):
            self.service.rollback(batch, token)

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.model.batches) - 1))
        gone = [batch[0] for batch in self.model.batches[at:]]
        assert self.service.rollback(gone[0], self.leases[gone[0]].token) == gone
        del self.model.batches[at:]

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._open()

    @rule(part=st.one_of(st.integers(0, 260), st.just(10_000)), torn_meta=st.booleans(), data=st.data())
    def kill(self, part: int, torn_meta: bool, data: st.DataObject) -> None:
        """Leaves the folder as a killed process does: bytes without an entry, a torn entry, a half-written meta."""
        if self.model.put < len(POOL) and part:
            transaction = POOL[self.model.put]
            self._append(transaction, part=part)
            # Where this began a segment, the one before is noted as finished soon, and only then is a whole transaction
            # behind it kept without an entry. It was never acknowledged, so both are right; chance must not decide.
            self.store.flush()
            if part >= transaction.size_bytes:  # whole: recovery may keep it, since it is what the source said
                self.model.put += 1
        self.generation += 1
        folder = self.base / str(self.generation)
        shutil.copytree(self.folder, folder)
        self.store.close()
        shutil.rmtree(self.folder)
        self.folder.symlink_to(folder)  # manifests that are outstanding name the old place
        self.folder = folder
        newest = max((folder / "shop" / "store" / "segments").glob("*.index"), default=None)
        if newest is not None and data.draw(st.booleans()):
            with newest.open("ab") as file:
                file.write(bytes(data.draw(st.integers(1, 127))))
        if torn_meta:
            (folder / "shop" / "meta" / ".meta.json.new").write_bytes(b'{"format": "towpa')
        self._open()

    @rule()
    def kill_between_results_and_ack(self) -> None:
        if self.model.batches:
            batch = self.model.batches[0][0]
            path = self.service.manifests.path("apply", batch)
            self.service.manifests.mark_acked(path, self.leases[batch].expires, ())

    # --- invariants

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "store"):
            return
        reader = StoreReader(self.config.store.path)
        put = self.model.put
        assert reader.first_seq() == (POOL[0].seq if put else None)
        assert reader.last_seq() == (POOL[put - 1].seq if put else None)
        subscription = self.service.meta.read().subscriptions.get("apply")
        if subscription is not None:
            assert subscription.acked_seq == (POOL[self.model.acked - 1].seq if self.model.acked else 0)
            assert [o.batch for o in subscription.outstanding] == [batch for batch, *_ in self.model.batches]


def test_everything_is_as_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing here cuts the power: what a process wrote stays. Waiting for the disk would only make it slow.
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    case = StoreAndMeta.TestCase
    case.settings = settings(
        max_examples=max(1, STEPS // STEPS_EACH),
        stateful_step_count=STEPS_EACH,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    assert np.all(np.diff([t.seq for t in POOL]) > 0)
    case("runTest").runTest()

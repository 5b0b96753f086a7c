"""The contract of :class:`cdc.meta.base.Meta` as tests: subclass it for a meta, and run it with pytest.

::

    class TestMyMeta(SharedMetaContract):
        @pytest.fixture
        def make_meta(self, tmp_path):
            return functools.partial(MyMeta, tmp_path)

``make_meta(lock_wait_s=…)`` opens the meta of the destination ``shop``, which is empty at first, and the same one each
time. :class:`MetaContract` closes one before it opens another. :class:`SharedMetaContract` is for a meta that several
processes may have open together, and that survives the SIGKILL of any of them; its ``make_meta`` must be picklable. The
rules are those of Canal's meta manager (``CanalMetaManager``), and the tests are named after them. Random tests print
their seed; ``TOWPATH_SEED`` sets another, ``TOWPATH_KILLS`` the number of kills.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import pytest

from cdc.base.errors import BatchError, BatchOrderError, IdentityError, LeaseHeldError, UsageError
from cdc.event_store.memory_meta import MemoryMeta
from cdc.meta import HistoryMark, Meta, Outstanding, SourceIdentity, State
from cdc.meta.state import REMEMBERED

SEED = int(os.environ.get("TOWPATH_SEED") or 20_261_121)
KILLS = int(os.environ.get("TOWPATH_KILLS") or 4)
EXPIRES = datetime(2026, 11, 21, 12, 30, 15, 123456, tzinfo=UTC)
IDENTITY = SourceIdentity(server_uuid="u1", flavor="mysql", base_name="binlog", epoch=0, start_gtid="a:1-5")

# A fork of this process would have the locks of its threads, but no threads: so start from a clean process.
_processes = get_context("forkserver")
_processes.set_forkserver_preload(["cdc.testing.meta_contract", "kazoo.client"])


class MakeMeta(Protocol):
    """Opens the meta under test."""

    def __call__(self, *, lock_wait_s: float = 30.0) -> Meta: ...


def entry(batch: int, after: int, last: int) -> Outstanding:
    """Returns an outstanding batch of the transactions after ``after`` up to ``last``."""
    return Outstanding(
        batch=batch,
        first_seq=after + 1,
        last_seq=last,
        after_seq=after,
        owner="airflow:shop_apply",
        token=f"t{batch}",
        expires=EXPIRES,
        replaced=["ä", "t0"],
        mark=HistoryMark(seq=last, gtid="0-1-7", commit_time_us=1795430471123456, server_id=1, gtids="0-1-7"),
    )


def add_batch(meta: Meta, name: str, batch: Outstanding) -> None:
    """Records a batch as outstanding, behind the existing ones."""
    with meta.change() as state:
        state.subscription(name).add(batch)


def remove_batch(meta: Meta, name: str, batch: int) -> Outstanding:
    """Removes the first outstanding batch."""
    with meta.change() as state:
        return state.subscription(name).remove(batch)


def clear_batches(meta: Meta, name: str) -> list[Outstanding]:
    """Removes all outstanding batches and returns them."""
    with meta.change() as state:
        subscription = state.subscription(name)
        return subscription.remove_from(subscription.outstanding[0].batch) if subscription.outstanding else []


def batches(meta: Meta, name: str) -> list[Outstanding]:
    """Returns all outstanding batches in order."""
    return meta.read().subscription(name).outstanding


def unsubscribe(meta: Meta, name: str) -> None:
    """Removes a subscriber with its cursor and batches."""
    with meta.change() as state:
        state.subscription(name)
        del state.subscriptions[name]


class MetaContract:
    """The rules for every meta."""

    @pytest.fixture
    def make_meta(self) -> MakeMeta:
        """Subclasses override it."""
        raise NotImplementedError("override make_meta with a fixture that opens your meta")

    @pytest.fixture
    def open_meta(self, make_meta: MakeMeta) -> Iterator[MakeMeta]:
        """Returns ``make_meta``; closes all that it opened at the end of the test."""
        opened: list[Meta] = []

        def make(*, lock_wait_s: float = 30.0) -> Meta:
            opened.append(make_meta(lock_wait_s=lock_wait_s))
            return opened[-1]

        yield make
        for meta in opened:
            meta.close()

    @pytest.fixture
    def meta(self, open_meta: MakeMeta) -> Meta:
        """A meta with the subscriber ``apply``."""
        meta = open_meta()
        meta.subscribe("apply", r"shop\..*")
        return meta

    # subscriptions ----------------------------------------------------------------------------------------------

    def test_empty_at_first(self, open_meta: MakeMeta) -> None:
        meta = open_meta()
        assert meta.read() == State(destination="shop")
        assert meta.source() is None
        assert meta.subscriptions() == {}

    def test_subscribe_again_replaces_the_filter_and_keeps_cursor_and_batches(self, meta: Meta) -> None:
        meta.update_cursor("apply", 7)
        add_batch(meta, "apply", entry(1, 7, 9))
        meta.subscribe("apply", "other")
        subscription = meta.subscriptions()["apply"]
        assert (subscription.filter, subscription.acked_seq, subscription.outstanding) == ("other", 7, [entry(1, 7, 9)])

    @pytest.mark.parametrize("table_filter", [None, "", "shop\\..*,crm\\..*", "süß\n", "x" * 10_000])
    def test_the_filter_is_kept_with_its_subscriber(self, open_meta: MakeMeta, table_filter: str | None) -> None:
        meta = open_meta()
        meta.subscribe("apply", table_filter)
        meta.subscribe("1001", "another")
        assert {name: s.filter for name, s in meta.subscriptions().items()} == {
            "apply": table_filter,
            "1001": "another",
        }
        for later in ("", None, "b"):
            meta.subscribe("apply", later)
            assert meta.subscriptions()["apply"].filter == later

    def test_unsubscribe_removes_cursor_batches_and_nothing_else(self, meta: Meta) -> None:
        meta.subscribe("audit")
        for name in ("apply", "audit"):
            meta.update_cursor(name, 7)
            add_batch(meta, name, entry(1, 7, 9))
        audit = meta.subscriptions()["audit"]
        unsubscribe(meta, "apply")
        assert meta.subscriptions() == {"audit": audit}
        with pytest.raises(UsageError, match=r"there is no subscriber 'apply'\. Subscribers: audit"):
            unsubscribe(meta, "apply")
        meta.subscribe("apply")
        assert (meta.cursor("apply"), batches(meta, "apply")) == (0, [])

    @pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 65, "ä"])
    def test_invalid_names_are_refused(self, meta: Meta, name: str) -> None:
        with pytest.raises(UsageError, match="cannot be the name of a subscriber"):
            meta.subscribe(name)
        assert list(meta.subscriptions()) == ["apply"]

    # batches and cursor -----------------------------------------------------------------------------------------

    def test_batch_ids_grow_and_a_given_id_raises_the_counter(self, meta: Meta) -> None:
        add_batch(meta, "apply", entry(1, 0, 5))
        add_batch(meta, "apply", entry(4, 5, 9))
        assert meta.subscriptions()["apply"].next_batch == 5
        with pytest.raises(BatchError, match="batch 4 is not newer than the outstanding batch 4"):
            add_batch(meta, "apply", entry(4, 9, 10))
        with pytest.raises(BatchError, match="begins after 8, before 9"):
            add_batch(meta, "apply", entry(5, 8, 10))
        assert [e.batch for e in batches(meta, "apply")] == [1, 4]

    def test_first_latest_by_id_and_all(self, meta: Meta) -> None:
        assert batches(meta, "apply") == []
        entries = [entry(1, 0, 5), entry(2, 5, 9), entry(10, 9, 12)]
        for each in entries:
            add_batch(meta, "apply", each)
        subscription = meta.read().subscription("apply")
        assert subscription.find(2) == entries[1]
        assert subscription.find(3) is None
        assert batches(meta, "apply") == entries

    def test_removing_another_than_the_first_names_both_and_changes_nothing(self, meta: Meta) -> None:
        add_batch(meta, "apply", entry(11, 0, 5))
        add_batch(meta, "apply", entry(12, 5, 9))
        before = meta.read()
        with pytest.raises(BatchOrderError, match=r"batch 12 .*batch 11"):
            remove_batch(meta, "apply", 12)
        with pytest.raises(BatchError, match=r"batch 13 is not outstanding. Outstanding: 11, 12"):
            remove_batch(meta, "apply", 13)
        assert meta.read() == before
        assert remove_batch(meta, "apply", 11) == entry(11, 0, 5)
        assert remove_batch(meta, "apply", 12) == entry(12, 5, 9)

    def test_where_a_get_starts(self, meta: Meta) -> None:
        def start() -> int:
            return meta.subscriptions()["apply"].start_seq()

        assert start() == 0  # begins at the store's first transaction
        meta.update_cursor("apply", 5)
        assert start() == 5
        add_batch(meta, "apply", entry(1, 5, 9))
        add_batch(meta, "apply", entry(2, 9, 12))
        assert start() == 12
        clear_batches(meta, "apply")
        assert start() == 5

    def test_ack_removes_the_batch_and_moves_the_cursor_in_one_change(self, meta: Meta) -> None:
        add_batch(meta, "apply", entry(1, 0, 5))
        with meta.change() as state:
            subscription = state.subscription("apply")
            done = subscription.remove(1)
            subscription.acked_seq = done.last_seq
            subscription.remember(done, "acked")
        subscription = meta.subscriptions()["apply"]
        assert (subscription.acked_seq, subscription.outstanding) == (5, [])
        ended = subscription.ended(1)
        assert ended is not None and (ended.token, ended.outcome) == ("t1", "acked")

    def test_rollback_of_all_keeps_the_cursor_and_ids_go_on_growing(self, meta: Meta) -> None:
        entries = [entry(1, 0, 5), entry(2, 5, 9)]
        for each in entries:
            add_batch(meta, "apply", each)
        assert clear_batches(meta, "apply") == entries
        assert clear_batches(meta, "apply") == []
        subscription = meta.subscriptions()["apply"]
        assert (subscription.acked_seq, subscription.next_batch) == (0, 3)
        again = entry(subscription.next_batch, subscription.start_seq(), 5)
        add_batch(meta, "apply", again)
        assert batches(meta, "apply") == [again]

    def test_rollback_of_a_batch_rolls_back_the_later_ones(self, meta: Meta) -> None:
        for each in (entry(1, 0, 5), entry(2, 5, 9), entry(3, 9, 12)):
            add_batch(meta, "apply", each)
        with meta.change() as state:
            gone = state.subscription("apply").remove_from(2)
        assert [e.batch for e in gone] == [2, 3]
        assert batches(meta, "apply") == [entry(1, 0, 5)]
        assert meta.subscriptions()["apply"].start_seq() == 5

    def test_the_last_ended_batches_are_remembered(self, meta: Meta) -> None:
        with meta.change() as state:
            subscription = state.subscription("apply")
            for batch in range(1, REMEMBERED + 5):
                subscription.remember(entry(batch, 0, 1), "rolled_back" if batch % 2 else "acked")
        subscription = meta.subscriptions()["apply"]
        assert [f.batch for f in subscription.finished] == list(range(5, REMEMBERED + 5))
        assert subscription.ended(4) is None

    def test_the_cursor_may_go_back(self, meta: Meta) -> None:
        for seq in (1 << 62, 206158431791, 1, 0):
            meta.update_cursor("apply", seq)
            assert meta.cursor("apply") == seq

    def test_the_source_is_bound_once(self, meta: Meta) -> None:
        meta.update_cursor("apply", 206158431791)
        assert meta.bind_source(IDENTITY) == IDENTITY
        assert meta.bind_source(IDENTITY.model_copy(update={"start_gtid": "a:1-900"})) == IDENTITY
        for key, value in {"server_uuid": "u2", "flavor": "mariadb", "base_name": "mysql-bin", "epoch": 1}.items():
            with pytest.raises(IdentityError, match=str(value)):
                meta.bind_source(IDENTITY.model_copy(update={key: value}))
        assert meta.source() == IDENTITY
        assert meta.cursor("apply") == 206158431791

    # changes ----------------------------------------------------------------------------------------------------

    def test_an_exception_leaves_everything_as_it_was(self, meta: Meta) -> None:
        before = meta.read()

        def clear_and_fail() -> None:
            with meta.change() as state:
                state.source = IDENTITY
                state.subscriptions.clear()
                state.subscription("apply")

        with pytest.raises(UsageError):
            clear_and_fail()
        assert meta.read() == before
        meta.update_cursor("apply", 3)  # the lock is free again

    def test_a_state_that_was_read_or_changed_is_the_callers_own(self, meta: Meta) -> None:
        with meta.change() as kept:
            kept.subscription("apply").acked_seq = 5
        mine = meta.read()
        for state in (kept, mine):
            state.subscription("apply").acked_seq = 9
            state.subscription("apply").outstanding.append(entry(1, 0, 3))
        assert (meta.cursor("apply"), batches(meta, "apply")) == (5, [])

    def test_changes_of_many_threads_are_all_kept(self, meta: Meta) -> None:
        def work() -> None:
            for _ in range(8):
                with meta.change() as state:
                    state.subscription("apply").acked_seq += 1

        _at_once([work] * 4)
        assert meta.cursor("apply") == 32

    def test_readers_never_see_half_a_change(self, meta: Meta) -> None:
        meta.subscribe("audit")
        done = threading.Event()

        def write() -> None:
            for _ in range(25):
                with meta.change() as state:
                    _step(state)
            done.set()

        def read() -> None:
            seen = 0
            while not done.is_set() or not seen:
                _require_whole(meta.read())
                time.sleep(0.001)  # leaves the processor to the writer
                seen += 1

        _at_once([write, read])

    def test_a_holder_that_does_not_finish_is_named(self, open_meta: MakeMeta) -> None:
        meta = open_meta(lock_wait_s=0.2)
        meta.subscribe("apply")
        with meta.change() as state:
            state.subscription("apply").acked_seq = 4
            with pytest.raises(LeaseHeldError, match=f"process {os.getpid()}"), meta.change():
                raise AssertionError("two holders at once")
        assert meta.cursor("apply") == 4

    def test_a_named_lock_has_one_holder_and_is_independent_of_changes(self, open_meta: MakeMeta) -> None:
        meta = open_meta(lock_wait_s=0.2)
        meta.subscribe("apply")
        with meta.lock("job-shop.orders", "a job"), meta.lock("job-shop.items", "a job"):
            meta.update_cursor("apply", 4)
            with (
                pytest.raises(LeaseHeldError, match=f"process {os.getpid()}|\\(process {os.getpid()}\\)"),
                meta.lock("job-shop.orders", "a job"),
            ):
                raise AssertionError("two holders at once")
        with meta.lock("job-shop.orders", "a job", wait_s=5):
            assert meta.cursor("apply") == 4

    def test_a_shared_lock_has_many_holders_and_excludes_an_exclusive_one(self, open_meta: MakeMeta) -> None:
        meta = open_meta(lock_wait_s=0.2)
        meta.subscribe("apply")
        refused = [pytest.raises(LeaseHeldError, match=f"process {os.getpid()}") for _ in range(2)]
        shared = [meta.lock("t", "a merge", shared=True, wait_s=5) for _ in range(2)]
        with shared[0], shared[1], refused[0], meta.lock("t", "a job"):
            raise AssertionError("an exclusive holder beside others")
        with meta.lock("t", "a job", wait_s=5), refused[1], meta.lock("t", "a merge", shared=True):
            raise AssertionError("a holder beside an exclusive one")
        assert meta.cursor("apply") == 0

    def test_everything_is_there_when_it_is_opened_again(self, open_meta: MakeMeta, meta: Meta) -> None:
        meta.bind_source(IDENTITY)
        meta.subscribe("audit", "")
        for batch, after in enumerate((0, 100, 200, 300), start=1):
            add_batch(meta, "apply", entry(batch, after, after + 100))
        with meta.change() as state:
            subscription = state.subscription("apply")
            subscription.remember(subscription.remove(1), "acked")
            subscription.remember(subscription.remove_from(4)[0], "rolled_back")
            subscription.acked_seq = 100
        before = meta.read()
        meta.close()
        assert open_meta().read() == before
        assert [e.batch for e in before.subscription("apply").outstanding] == [2, 3]

    def test_random_changes_and_reopenings_end_as_in_memory(self, open_meta: MakeMeta) -> None:
        print(f"seed {SEED}")
        choose = random.Random(SEED)
        meta, expected = open_meta(), MemoryMeta("shop")
        for _ in range(60):
            step = choose.randrange(1 << 30)
            outcomes = [_random_change(each, random.Random(step)) for each in (expected, meta)]
            assert outcomes[0] == outcomes[1]
            if choose.random() < 0.1:
                meta.close()
                meta = open_meta()
            assert meta.read() == expected.read()


class SharedMetaContract(MetaContract):
    """The further rules for a meta that several processes share."""

    def test_a_change_of_one_is_seen_by_another(self, open_meta: MakeMeta, meta: Meta) -> None:
        other = open_meta()
        for seq in range(1, 6):
            meta.update_cursor("apply", seq)
            assert other.cursor("apply") == seq
            add_batch(other, "apply", entry(seq, seq, seq + 1))
            assert clear_batches(meta, "apply") == [entry(seq, seq, seq + 1)]

    def test_changes_of_many_processes_are_all_kept(self, make_meta: MakeMeta, meta: Meta) -> None:
        workers = [_start(_count, make_meta, 8) for _ in range(3)]
        for worker in workers:
            worker.join(120)
            assert worker.exitcode == 0
        assert meta.cursor("apply") == 24
        with meta.change() as state:
            state.subscription("apply").acked_seq += 1
        assert meta.cursor("apply") == 25

    def test_sigkill_of_a_holder_frees_the_lock_and_changes_nothing(
        self, make_meta: MakeMeta, meta: Meta, tmp_path: Path
    ) -> None:
        before = meta.read()
        worker = _start(_hold, make_meta, tmp_path / "here")
        _wait_for(tmp_path / "here", worker)
        _kill(worker)
        meta.update_cursor("apply", 3)
        before.subscription("apply").acked_seq = 3
        assert meta.read() == before

    def test_sigkill_of_a_holder_frees_a_named_lock(self, make_meta: MakeMeta, meta: Meta, tmp_path: Path) -> None:
        worker = _start(_hold_named, make_meta, tmp_path / "here")
        _wait_for(tmp_path / "here", worker)
        with pytest.raises(LeaseHeldError, match=f"process {worker.pid}"), meta.lock("job-shop.orders", "a job"):
            raise AssertionError("two holders at once")
        _kill(worker)
        with meta.lock("job-shop.orders", "a job", wait_s=60):
            meta.update_cursor("apply", 5)
        assert meta.cursor("apply") == 5

    def test_sigkill_in_the_middle_of_changes_leaves_the_old_or_the_new_state(
        self, make_meta: MakeMeta, meta: Meta, tmp_path: Path
    ) -> None:
        print(f"seed {SEED}")
        moments = random.Random(SEED)
        meta.subscribe("audit")
        for kill in range(KILLS):
            journal = tmp_path / f"journal{kill}"
            worker = _start(_step_for_ever, make_meta, journal)
            _wait_for(journal, worker)
            time.sleep(moments.uniform(0.0, 0.1))
            _kill(worker)
            state = meta.read()
            _require_whole(state)
            assert state.subscription("apply").acked_seq >= int(journal.read_text().split()[-1])


# The work of processes and threads ----------------------------------------------------------------------------------


def _count(make_meta: MakeMeta, times: int) -> None:
    with make_meta() as meta:
        for _ in range(times):
            with meta.change() as state:
                state.subscription("apply").acked_seq += 1


def _hold(make_meta: MakeMeta, here: Path) -> None:
    with make_meta().change() as state:
        _step(state)
        here.write_text("here\n")
        time.sleep(600)


def _hold_named(make_meta: MakeMeta, here: Path) -> None:
    with make_meta().lock("job-shop.orders", "a job"):
        here.write_text("here\n")
        time.sleep(600)


def _step_for_ever(make_meta: MakeMeta, journal: Path) -> None:
    meta = make_meta()
    with journal.open("a") as done:
        while True:
            with meta.change() as state:
                _step(state)
                seq = state.subscription("apply").acked_seq
            done.write(f"{seq}\n")
            done.flush()


def _step(state: State) -> None:
    """Moves all subscribers on together: acks one batch, and makes the next one outstanding."""
    for subscription in state.subscriptions.values():
        if subscription.outstanding:
            ended = subscription.remove(subscription.outstanding[0].batch)
            subscription.remember(ended, "acked")
            subscription.acked_seq = ended.last_seq
        subscription.add(entry(subscription.next_batch, subscription.start_seq(), subscription.start_seq() + 10))
        subscription.filter = f"after {subscription.next_batch}"


def _require_whole(state: State) -> None:
    """Checks that all subscribers are as one and the same step left them."""
    documents = [subscription.model_dump(exclude={"filter"}) for subscription in state.subscriptions.values()]
    assert all(each == documents[0] for each in documents), state
    for subscription in state.subscriptions.values():
        if subscription.outstanding:
            assert subscription.filter == f"after {subscription.next_batch}"
            assert [(e.batch, e.after_seq) for e in subscription.outstanding] == [
                (subscription.next_batch - 1, subscription.acked_seq)
            ]
            assert subscription.acked_seq == 10 * (subscription.next_batch - 2)


def _random_change(meta: Meta, choose: random.Random) -> Any:
    """Does one operation; returns its result, or its error."""
    name = choose.choice(["apply", "audit", "1001"])

    def add() -> None:
        subscription = meta.read().subscription(name)
        batch = subscription.next_batch + choose.choice([0, 0, 0, 2, -1])
        after = subscription.start_seq() + choose.choice([0, 0, 5, -3])
        add_batch(meta, name, entry(max(1, batch), after, after + choose.randrange(1, 1 << 40)))

    operations: list[Callable[[], Any]] = [
        lambda: meta.subscribe(name, choose.choice([None, "", "a", "b"])),
        lambda: meta.subscribe(name),
        lambda: unsubscribe(meta, name),
        lambda: meta.update_cursor(name, choose.randrange(1 << 62)),
        lambda: clear_batches(meta, name),
        lambda: remove_batch(meta, name, choose.randrange(1, 6)),
        lambda: meta.bind_source(IDENTITY),
        *[add] * 6,
    ]
    try:
        return choose.choice(operations)()
    except (BatchError, UsageError) as error:
        return type(error), error.message


def _at_once(works: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads)


def _start(target: Callable[..., None], *args: Any) -> BaseProcess:
    process = _processes.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def _wait_for(file: Path, worker: BaseProcess) -> None:
    deadline = time.monotonic() + 60
    while not file.exists() or not file.read_text().endswith("\n"):
        assert worker.is_alive() and time.monotonic() < deadline, f"the other process did not get to {file.name}"
        time.sleep(0.005)


def _kill(worker: BaseProcess) -> None:
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert worker.exitcode == -signal.SIGKILL

"""The rules of get, ack, rollback, check and renew."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from cdc.base.errors import BatchError, BatchOrderError, IdentityError, LeaseHeldError, TokenError, UsageError
from cdc.batches.lease import Lease
from cdc.batches.manifest_files import load_manifest
from cdc.batches.protocol import Batches
from cdc.batches.service import BatchService, limits_of
from cdc.config import DestinationConfig
from tests.support.unit_batches import TX_TIME_US, Clock, NumberStore, make_config, make_service

A, B = "airflow:shop_apply", "cli:host:/conf/shop.yaml"


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    return make_config(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(config: DestinationConfig, clock: Clock) -> BatchService:
    return make_service(config, NumberStore(last=10), clock)


def get(service: Batches, owner: str = A, *, ahead: bool = False, subscriber: str = "apply") -> Lease:
    lease = service.get(owner, ahead=ahead, subscriber=subscriber)
    assert lease is not None
    return lease


def bounds(lease: Lease) -> tuple[int, int, int]:
    return lease.manifest.after_seq, lease.manifest.first_seq, lease.manifest.last_seq


def test_batches_follow_one_another_and_are_acked_in_order(service: BatchService) -> None:
    batches = []
    while (lease := service.get(A)) is not None:
        batches.append((lease.batch, bounds(lease)))
        service.ack(lease.batch, lease.token)
    assert batches == [(1, (0, 1, 3)), (2, (3, 4, 6)), (3, (6, 7, 9)), (4, (9, 10, 10))]
    assert service.meta.cursor("apply") == 10


def test_the_manifest_on_disk_equals_the_leases_and_has_no_token(
    service: BatchService, config: DestinationConfig
) -> None:
    lease = get(service)
    assert lease.manifest_path == config.meta.path / "manifests" / "apply" / "000000000001.json"
    assert load_manifest(lease.manifest_path) == lease.manifest
    assert lease.token not in lease.manifest_path.read_text()
    assert "expires" not in lease.manifest_path.read_text()
    assert lease.manifest.server_uuid == "uuid-1"
    assert lease.manifest.positions.first.time == "1970-01-01T00:00:01Z"
    assert lease.manifest.schema_path == "/store/schemas/0.json"


def test_a_lease_is_restored_from_json(service: BatchService) -> None:
    lease = get(service)
    assert Lease.from_dict(lease.as_dict()) == lease
    with pytest.raises(UsageError, match="not a lease"):
        Lease.from_dict({"batch": 1})


@pytest.mark.rule("canal-meta-10")
def test_same_owner_gets_the_same_batch_with_a_new_token(service: BatchService) -> None:
    first, repeated = get(service), get(service)
    assert repeated.manifest == first.manifest
    assert repeated.token != first.token
    with pytest.raises(TokenError, match="was replaced"):
        service.ack(first.batch, first.token)
    service.ack(repeated.batch, repeated.token)


def test_a_batch_does_not_grow_while_it_is_outstanding(config: DestinationConfig, clock: Clock) -> None:
    store = NumberStore(last=2)
    service = make_service(config, store, clock)
    assert bounds(get(service)) == (0, 1, 2)
    store.last = 3
    assert bounds(get(service)) == (0, 1, 2)


@pytest.mark.rule("canal-server-22")
def test_another_owners_live_lease_is_refused_naming_owner_and_expiry(service: BatchService) -> None:
    get(service, A)
    for ahead in (False, True):
        with pytest.raises(LeaseHeldError, match=r"airflow:shop_apply until 2026-11-21T12:01:00Z") as caught:
            service.get(B, ahead=ahead)
        assert caught.value.exit_code == 1


@pytest.mark.rule("canal-server-22")
@pytest.mark.parametrize("ahead", [False, True])
def test_an_expired_lease_is_taken_over(service: BatchService, clock: Clock, ahead: bool) -> None:
    old = get(service, A)
    clock.forward(60)
    new = get(service, B, ahead=ahead)
    assert new.manifest == old.manifest
    with pytest.raises(TokenError, match=f"to {B}"):
        service.ack(old.batch, old.token)
    service.ack(new.batch, new.token)


@pytest.mark.rule("canal-meta-10")
def test_get_ahead_hands_out_the_next_one(service: BatchService) -> None:
    first, second = get(service), get(service, ahead=True)
    assert (bounds(first), bounds(second)) == ((0, 1, 3), (3, 4, 6))
    assert [o.batch for o in service.outstanding()] == [1, 2]
    service.check(first.batch, first.token)
    with pytest.raises(BatchOrderError):
        service.check(second.batch, second.token)
    service.ack(first.batch, first.token)
    service.check(second.batch, second.token)
    service.ack(second.batch, second.token)


def test_ack_of_another_than_the_first_names_both(service: BatchService) -> None:
    get(service)
    second = get(service, ahead=True)
    with pytest.raises(BatchOrderError, match=r"batch 2 cannot be acked: batch 1 is due first") as caught:
        service.ack(second.batch, second.token)
    assert caught.value.exit_code == 2
    assert service.meta.cursor("apply") == 0


def test_wrong_and_expired_tokens_have_their_own_errors(service: BatchService, clock: Clock) -> None:
    lease = get(service)
    for action in (service.ack, service.rollback, service.check, service.renew):
        with pytest.raises(TokenError, match="is wrong"):
            action(lease.batch, "no such token")
    clock.forward(60)
    for action in (service.ack, service.rollback, service.check, service.renew):
        with pytest.raises(TokenError, match="expired at 2026-11-21T12:01:00Z"):
            action(lease.batch, lease.token)
    assert service.meta.cursor("apply") == 0
    assert [o.batch for o in service.outstanding()] == [1]


def test_renew_prolongs_from_now(service: BatchService, clock: Clock) -> None:
    lease = get(service)
    clock.forward(50)
    assert service.renew(lease.batch, lease.token) == clock.now + timedelta(seconds=60)
    clock.forward(50)
    service.ack(lease.batch, lease.token)


def test_a_repeated_ack_does_nothing_and_a_contradicting_one_is_refused(service: BatchService) -> None:
    lease = get(service)
    service.ack(lease.batch, lease.token)
    get(service)
    service.ack(lease.batch, lease.token)
    assert service.meta.cursor("apply") == 3
    with pytest.raises(TokenError, match="acked already, with another token"):
        service.ack(lease.batch, "other")
    with pytest.raises(BatchError, match="was acked already"):
        service.rollback(lease.batch, lease.token)
    assert service.meta.cursor("apply") == 3


@pytest.mark.rule("canal-meta-14")
def test_rollback_includes_later_batches_and_their_transactions_come_again(service: BatchService) -> None:
    first, second, third = get(service), get(service, ahead=True), get(service, ahead=True)
    assert service.rollback(second.batch, second.token) == [2, 3]
    assert service.rollback(second.batch, second.token) == []
    assert service.rollback(third.batch, third.token) == []
    assert not second.manifest_path.exists()
    with pytest.raises(BatchError, match="rolled back already"):
        service.ack(second.batch, second.token)
    repeated = get(service, ahead=True)
    assert repeated.batch == 4  # ids only grow
    assert bounds(repeated) == bounds(second)
    assert service.rollback(first.batch, first.token) == [1, 4]
    assert bounds(get(service)) == bounds(first)


def test_unknown_batches_and_subscribers_are_named(service: BatchService) -> None:
    with pytest.raises(UsageError, match="no subscriber 'apply'"):
        service.ack(1, "t")
    get(service)
    with pytest.raises(BatchError, match=r"batch 9 is not outstanding. Outstanding: 1."):
        service.ack(9, "t")
    with pytest.raises(UsageError, match="cannot be the name"):
        service.get(A, subscriber="../x")


@pytest.mark.rule("canal-ring-35")
def test_subscribers_are_independent(service: BatchService) -> None:
    mine, other = get(service), get(service, B, subscriber="audit")
    assert bounds(mine) == bounds(other)
    service.ack(mine.batch, mine.token)
    assert service.meta.cursor("audit") == 0
    assert service.outstanding("nobody") == []


@pytest.mark.rule("canal-meta-3")
def test_subscribing_stores_the_cursor_at_once(service: BatchService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Canal does the same: the store's first position is the cursor, even if the first get comes later."""
    service.subscribe("audit")
    assert service.meta.subscriptions()["audit"].acked_seq == 0
    monkeypatch.setattr(NumberStore, "removed_seq", lambda self: 6)
    assert service.subscribe("late").acked_seq == 6
    assert service.meta.cursor("late") == 6
    assert bounds(get(service, subscriber="late")) == (6, 7, 9)
    service.subscribe("audit", r"shop\.items")
    assert service.meta.cursor("audit") == 0, "and it stays what it was"


@pytest.mark.rule("canal-meta-6")
def test_nothing_to_hand_out_is_none(config: DestinationConfig) -> None:
    """Canal returns batch id −1."""
    assert make_service(config, NumberStore(last=0)).get(A) is None


def test_ddl_is_a_batch_of_its_own(config: DestinationConfig) -> None:
    service = make_service(config, NumberStore(last=4, ddl=frozenset({2})))
    batches = []
    while (lease := service.get(A)) is not None:
        batches.append((lease.manifest.first_seq, lease.manifest.last_seq, lease.manifest.ddl))
        service.ack(lease.batch, lease.token)
    assert batches == [(1, 1, False), (2, 2, True), (3, 4, False)]


def test_limits_default_to_the_configuration(config: DestinationConfig) -> None:
    store = NumberStore(last=10)
    service = make_service(config, store)
    lease = service.get(A, limits=limits_of(config.batch, until_us=3 * TX_TIME_US))
    assert lease is not None
    assert bounds(lease) == (0, 1, 2)
    assert store.asked[-1][1].max_bytes == config.batch.max_bytes
    service.ack(lease.batch, lease.token)
    assert service.get(A, limits=limits_of(config.batch, until_us=3 * TX_TIME_US)) is None


@pytest.mark.rule("canal-server-15")
def test_get_waits_for_the_first_transaction(config: DestinationConfig) -> None:
    store = NumberStore(last=0)
    service = make_service(config, store)
    started = time.monotonic()
    assert service.get(A, wait_s=0.12) is None
    assert time.monotonic() - started >= 0.12

    def fill() -> None:
        store.last = 1

    timer = threading.Timer(0.1, fill)
    timer.start()
    assert service.get(A, wait_s=10) is not None
    timer.join()


def test_nothing_is_handed_out_before_the_source_is_known(config: DestinationConfig) -> None:
    service = BatchService(config, reader=NumberStore(last=0))
    assert service.get(A) is None
    with pytest.raises(IdentityError, match="does not know which source"):
        BatchService(config, reader=NumberStore(last=1)).get(A)
    assert service.outstanding() == []


def test_ack_records_results_and_the_versions_of_all_tables(service: BatchService) -> None:
    lease = get(service)
    rows = [{"table": "shop.orders", "inserted": 5, "delta_version": 1}, {"table": "shop.items", "delta_version": 4}]
    service.ack(lease.batch, lease.token, results=rows)
    second = get(service)
    service.ack(second.batch, second.token, results=[{"table": "shop.orders", "updated": 1, "delta_version": 2}])
    first_acked = load_manifest(lease.manifest_path).acked
    second_acked = load_manifest(second.manifest_path).acked
    assert first_acked is not None
    assert second_acked is not None
    assert first_acked.tables[0].inserted == 5
    assert first_acked.versions == {"shop.orders": 1, "shop.items": 4}
    assert second_acked.versions == {"shop.orders": 2, "shop.items": 4}
    with pytest.raises(UsageError, match="not the results of a merge"):
        service.ack(3, "t", results=[{"inserted": 1}])


def test_an_ack_parks_the_tables_that_the_configuration_left_out_of_the_merge(
    service: BatchService, config: DestinationConfig, clock: Clock
) -> None:
    """Included again, such a table would lack the changes of the batch."""
    lease = get(service)
    [table] = lease.manifest.tables
    loaded = {"table": table, "delta_version": 1, "delta_id": "5a7", "applied_seq": 3}
    service.ack(lease.batch, lease.token, results=[loaded])
    tables = config.tables.model_copy(update={"exclude": (table.replace(".", "\\."),)})
    without = make_service(config.model_copy(update={"tables": tables}), NumberStore(last=10), clock)
    lease = get(without)
    without.ack(lease.batch, lease.token)
    assert {name: record.due for name, record in service.subscription().parked.items()} == {table: "snapshot"}


def test_a_lost_or_damaged_manifest_gives_a_new_batch_with_the_same_data(service: BatchService) -> None:
    first = get(service)
    first.manifest_path.unlink()
    second = get(service)
    assert (second.batch, bounds(second)) == (2, bounds(first))
    second.manifest_path.write_bytes(second.manifest_path.read_bytes()[:100])
    third = get(service)
    assert (third.batch, bounds(third)) == (3, bounds(first))
    third.manifest_path.unlink()
    service.ack(third.batch, third.token)  # the merge is done: the batch is acked although its results are not recorded
    assert service.meta.cursor("apply") == 3


def test_files_of_a_killed_get_are_overwritten_and_a_lost_meta_does_not_reuse_ids(
    service: BatchService, config: DestinationConfig
) -> None:
    service.meta.subscribe("apply")
    manifest_file = service.manifests.path("apply", 1)
    manifest_file.parent.mkdir(parents=True)
    manifest_file.write_text("half of a manif")
    assert get(service).batch == 1
    assert load_manifest(manifest_file).batch == 1
    (config.meta.path / "meta.json").unlink()
    assert get(make_service(config, NumberStore(last=10))).batch == 2


def test_kept_manifests_are_bounded(service: BatchService) -> None:
    service.manifests._kept = 2
    for _ in range(4):
        lease = get(service)
        service.ack(lease.batch, lease.token)
    assert service.manifests.ids("apply") == [3, 4]


def test_two_threads_of_one_owner_never_hold_valid_tokens_together(config: DestinationConfig) -> None:
    leases: list[Lease] = []

    def work() -> None:
        leases.append(get(make_service(config, NumberStore(last=10))))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service = make_service(config, NumberStore(last=10))
    assert {lease.batch for lease in leases} == {1}
    valid = []
    for lease in leases:
        try:
            service.check(lease.batch, lease.token)
        except TokenError:
            continue
        valid.append(lease)
    assert len(valid) == 1


class TestFollowing:
    """The batch after one that was just acked."""

    def test_it_is_handed_out_to_the_process_that_acked(self, config: DestinationConfig) -> None:
        service = make_service(config, NumberStore(last=9))
        lease: Lease | None = get(service)
        for following in (4, 7, None):
            assert lease is not None
            assert service.next_seq() == following
            service.ack(lease.batch, lease.token)
            acked, lease = lease, service.get_following(lease, A)
            assert (None if lease is None else lease.manifest.first_seq) == following
        assert service.get_following(acked, A) is None
        assert service.last_seq() == 9

    def test_an_orphan_gets_nothing(self, service: BatchService) -> None:
        """Both processes merged batch 1; the one that acks and asks first goes on."""
        lease = get(service)
        service.ack(lease.batch, lease.token)
        following = service.get_following(lease, A)
        assert following is not None
        service.ack(lease.batch, lease.token)  # by the orphan: a repetition
        with pytest.raises(TokenError, match="another process has taken the batches after batch 1"):
            service.get_following(lease, A)
        service.ack(following.batch, following.token)
        with pytest.raises(TokenError):
            service.get_following(lease, A)

    def test_after_a_rollback_by_another_it_is_refused(self, service: BatchService) -> None:
        lease = get(service)
        service.ack(lease.batch, lease.token)
        other = get(service)
        service.rollback(other.batch, other.token)
        with pytest.raises(TokenError):
            service.get_following(lease, A)

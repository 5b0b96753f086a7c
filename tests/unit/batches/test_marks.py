"""The marks of batches: what is known of the last transaction, and what an ack leaves in the meta."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.batches.results import history_mark
from cdc.batches.service import BatchService
from cdc.binlog.positions import CommitPosition
from cdc.meta import HistoryMark
from cdc.store.reader.batch_builder import Limits, Selection
from cdc.store.reader.reader import StoreReader
from tests.support.unit_batches import IDENTITY, NumberStore, make_config, make_service, make_store

OWNER = "airflow:shop_apply"
NEW = "81a3c8d4-e76c-11f1-9013-02fc00000001"


def selected(**changes: Any) -> Selection:
    selection = NumberStore(last=3).select(0, Limits())
    assert selection is not None
    return replace(selection, **changes)


def test_a_mark_has_what_is_known() -> None:
    whole = history_mark(selected(server_id=7, file_created_s=1), "0-1-3", "mariadb")
    assert whole == HistoryMark(
        seq=3, gtid="0-1-3", file_created_s=1, commit_time_us=3_000_000, server_id=7, gtids="0-1-3"
    )
    place = selected().last.position
    assert history_mark(selected(last=CommitPosition(place, None, 0)), None, "mysql") is None
    assert history_mark(selected(last=CommitPosition(place, None, 0), file_created_s=5), "", "mysql") == HistoryMark(
        seq=3, file_created_s=5
    )


def test_mariadbs_gtids_are_the_last_ones_of_the_domains() -> None:
    mark = history_mark(selected(), "0-1-90,0-2-120,1-1-7,5-3-1", "mariadb")
    assert mark is not None and mark.gtids == "0-2-120,1-1-7,5-3-1"


@pytest.mark.parametrize(("holes", "fits"), [(4000, True), (7000, False)])
def test_a_long_set_is_left_out(holes: int, fits: bool) -> None:
    text = f"{NEW}:" + ":".join(str(2 * number + 1) for number in range(holes))
    mark = history_mark(selected(), text, "mysql")
    assert mark is not None and mark.gtids == (text if fits else None)


def test_the_ack_gives_the_mark_to_the_subscriber(tmp_path: Path) -> None:
    service = make_service(make_config(tmp_path), NumberStore(last=9))
    first, second = service.get(OWNER), service.get(OWNER, ahead=True)
    assert first is not None and second is not None
    assert service.subscription().mark is None
    service.ack(first.batch, first.token)
    mark = HistoryMark(seq=3, gtid="0-1-3", commit_time_us=3_000_000)
    assert service.subscription().mark == mark
    service.rollback(second.batch, second.token)
    assert service.subscription().mark == mark
    third = service.get(OWNER)
    assert third is not None
    service.manifests.path("apply", third.batch).unlink()  # the ack does not need it
    service.ack(third.batch, third.token)
    assert service.subscription().mark == HistoryMark(seq=6, gtid="0-1-6", commit_time_us=6_000_000)


def test_a_batch_of_an_earlier_version_leaves_the_mark_as_it_is(tmp_path: Path) -> None:
    service = make_service(make_config(tmp_path), NumberStore(last=9))
    before = HistoryMark(seq=1, gtid="0-1-1", file_created_s=4)
    lease = service.get(OWNER)
    assert lease is not None
    with service.meta.change() as state:
        subscription = state.subscription("apply")
        subscription.mark, subscription.outstanding[0].mark = before, None
    service.ack(lease.batch, lease.token)
    assert (service.subscription().acked_seq, service.subscription().mark) == (3, before)


@pytest.fixture
def stored(tmp_path: Path) -> tuple[BatchService, Path]:
    """Batches of a store with real bytes of MySQL 9, whose server has the id 1; and the store's segment."""
    config = make_config(tmp_path)
    segment = make_store(config.store.path)
    service = BatchService(config)
    service.meta.bind_source(IDENTITY)
    return service, segment


def test_the_server_id_is_that_of_the_last_transaction(stored: tuple[BatchService, Path]) -> None:
    _, segment = stored
    selection = StoreReader(segment.parents[1]).select(0, Limits(max_transactions=2))
    assert selection is not None
    data = bytearray(segment.read_bytes())
    last = StoreReader(segment.parents[1]).entry_at(selection.last_seq)
    assert last is not None
    at = int(last["offset"]) + 5
    server_id = int.from_bytes(data[at : at + 4], "little")
    assert selection.server_id == server_id > 0
    data[at : at + 4] = (4711).to_bytes(4, "little")
    segment.write_bytes(data)
    again = StoreReader(segment.parents[1]).select(0, Limits(max_transactions=2))
    assert again is not None and again.server_id == 4711
    segment.write_bytes(data[: at - 1])  # damage, which the merge finds
    cut = StoreReader(segment.parents[1]).select(0, Limits(max_transactions=2))
    assert cut is not None and cut.server_id is None


def test_a_part_that_is_acked_has_a_mark(stored: tuple[BatchService, Path]) -> None:
    service, segment = stored
    create = service.get("canal", limits=Limits())
    assert create is not None
    service.ack(create.batch, create.token)
    lease = service.get("canal", limits=Limits())
    assert lease is not None and lease.manifest.transactions == 5
    entries = next(StoreReader(segment.parents[1]).all_entries(lease.manifest.after_seq))
    first, second = (int(seq) for seq in entries["seq"][:2])
    service.ack_until(lease.batch, lease.token, second)
    subscription = service.subscription()
    mark = subscription.mark
    assert mark is not None and mark.seq == second == subscription.acked_seq
    assert mark.commit_time_us == int(entries["commit_time_us"][1]) and mark.server_id is not None
    service.ack_until(lease.batch, lease.token, first)  # an older ack that comes late
    assert service.subscription().mark == mark


def test_a_part_is_acked_although_its_mark_cannot_be_read(stored: tuple[BatchService, Path]) -> None:
    service, segment = stored
    create = service.get("canal", limits=Limits())
    assert create is not None
    service.ack(create.batch, create.token)
    before = service.subscription().mark
    lease = service.get("canal", limits=Limits())
    assert lease is not None
    seq = int(next(StoreReader(segment.parents[1]).all_entries(lease.manifest.after_seq))["seq"][0])
    for path in segment.parent.iterdir():  # the client has read the transactions meanwhile
        path.unlink()
    service.ack_until(lease.batch, lease.token, seq)
    assert (service.subscription().acked_seq, service.subscription().mark) == (seq, before)

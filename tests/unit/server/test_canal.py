"""Canal's protocol as its clients see it: login, subscription, batches, ack, rollback, errors."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from structlog.testing import capture_logs

from cdc.base.errors import StorageError
from cdc.canal import packets as p
from cdc.canal.fields import data, number
from cdc.canal.zones import UTC
from cdc.config import load
from cdc.meta import open_meta
from cdc.server import canal_clients, canal_connection
from cdc.server.canal_cursor import ClientCursor
from cdc.server.destinations import ServedDestination
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from tests.fault.support import wait_for
from tests.support.canal_client import Batch, CanalRefusedError, RawClient, listening
from tests.support.canal_proto import parsed
from tests.support.unit_batches import IDENTITY, make_config, make_store


def served_destination(folder: Path, **canal: Any) -> ServedDestination:
    config = make_config(folder)
    document = yaml.safe_load(config.file.read_text())
    document["server"] = {"canal": {"enabled": True, **canal}}
    document["batch"] = {}
    config.file.write_text(yaml.safe_dump(document))
    config = load(config.file)
    if not config.store.path.exists():
        make_store(config.store.path)
        open_meta(config).bind_source(IDENTITY)
    return ServedDestination(config)


@pytest.fixture
def served(tmp_path: Path) -> ServedDestination:
    return served_destination(tmp_path)


@pytest.fixture
def port(served: ServedDestination) -> Iterator[int]:
    with listening([served]) as listening_port:
        yield listening_port


@pytest.fixture
def client(port: int) -> Iterator[RawClient]:
    with RawClient(port) as raw_client:
        yield raw_client.login().subscribe()


def everything(client: RawClient, fetch_size: int = 1000) -> list[Batch]:
    """All batches, each acked."""
    batches = []
    while (batch := client.get(fetch_size)).id != -1:
        client.ack(batch.id)
        batches.append(batch)
    return batches


def kinds(batches: list[Batch]) -> list[tuple[int, int]]:
    """Entry type and event type of each entry."""
    return [(entry.entry_type, entry.header.event_type) for batch in batches for entry in batch.entries]


def test_the_log_tells_who_came_and_how_cursors_moved(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    every_level = structlog.make_filtering_bound_logger(logging.DEBUG)
    monkeypatch.setattr(canal_connection, "_log", structlog.wrap_logger(None, wrapper_class=every_level))
    with capture_logs() as logs:
        with RawClient(port, client_id="7") as client:
            client.login().subscribe(r".*\..*")
            batch = client.get()
            client.rollback(batch.id)
            client.ack(client.get().id)
            client.unsubscribe()
        wait_for(lambda: any(line["event"] == "client gone" for line in logs), "the end of the connection")
    told = [(line["log_level"], line["event"]) for line in logs if "client" in line]
    assert told == [
        ("info", "client logged in"),
        ("info", "client subscribed"),
        ("debug", "cursor moved back"),
        ("debug", "cursor moved"),
        ("info", "client unsubscribed"),
        ("info", "client gone"),
    ]
    subscribed = next(line for line in logs if line["event"] == "client subscribed")
    assert (subscribed["destination"], subscribed["filter"]) == ("shop", r".*\..*")


WHOLE = [
    *[(2, 4)],
    *[(1, 0), (2, 1), (3, 0)] * 4,
    *[(1, 0), (2, 2), (3, 0)],
    *[(2, 5)],
    *[(1, 0), (2, 3), (3, 0)],
]
"""CREATE TABLE, four inserts, an update, ALTER TABLE, a delete."""


@pytest.mark.rule("canal-server-18")
def test_all_changes_arrive_once_and_in_order(client: RawClient) -> None:
    batches = everything(client)
    assert kinds(batches) == WHOLE
    assert everything(client) == []
    ddl = [entry for batch in batches for entry in batch.entries if entry.header.event_type in (4, 5)]
    for entry, alone in zip(ddl, [batch for batch in batches if batch.entries[0] in ddl], strict=True):
        change = parsed("RowChange", entry.store_value)
        assert change.is_ddl
        assert change.sql
        assert (entry.header.schema_name, entry.header.table_name) == ("bat", "o")
        assert len(alone.entries) == 1, "a DDL statement is a batch of its own"


def test_headers_name_the_place_in_the_source(client: RawClient) -> None:
    headers = [entry.header for batch in everything(client) for entry in batch.entries]
    assert {header.logfile_name for header in headers} == {"binlog.000007"}
    offsets = [header.logfile_offset for header in headers]
    assert offsets == sorted(offsets)
    assert offsets[0] > 4
    assert all(header.execute_time % 1000 == 0 and header.execute_time > 1_600_000_000_000 for header in headers)
    assert {header.serveren_code for header in headers} == {"UTF-8"}
    assert {header.source_type for header in headers} == {2}
    assert {header.version for header in headers} == {1}


def test_small_batches_end_inside_transactions_and_have_the_same_entries(client: RawClient) -> None:
    whole = everything(client)
    client.unsubscribe()
    client.subscribe()
    small = []
    while (batch := client.get(fetch_size=-5)).id != -1:
        client.ack(batch.id)
        small.append(batch)
    assert kinds(small) == kinds(whole)
    assert [batch.rows() for batch in whole if batch.rows()]


def test_without_ack_the_next_get_returns_the_next_batch(client: RawClient) -> None:
    first = client.get()
    second = client.get()
    assert kinds([first]) == WHOLE[:1]
    assert kinds([first, second]) == WHOLE[: len(first.entries) + len(second.entries)]
    assert second.id > first.id


def test_rollback_of_all_returns_everything_again_under_new_ids(client: RawClient) -> None:
    first, second = client.get(), client.get()
    client.rollback()
    repeated = [client.get(), client.get()]
    assert kinds(repeated) == kinds([first, second])
    assert min(batch.id for batch in repeated) > second.id


def test_rollback_of_one_returns_it_and_later_ones(client: RawClient) -> None:
    first, second = client.get(), client.get()
    client.rollback(second.id)
    assert kinds([client.get()]) == kinds([second])
    client.ack(first.id)
    assert client.get().id != -1


def test_batches_are_acked_in_order(client: RawClient) -> None:
    first, second = client.get(), client.get()
    client.ack(second.id)
    with pytest.raises(CanalRefusedError, match=f"batchId:{second.id} is not the firstly:{first.id}") as refused:
        client.expect_ack()
    assert refused.value.code == 400
    client.ack(first.id)
    client.ack(second.id)
    client.ack(second.id)
    with pytest.raises(CanalRefusedError, match=f"batchId:{second.id} is not exist"):
        client.expect_ack()


def test_a_connection_is_replaced_without_losing_batches(port: int, client: RawClient) -> None:
    first, second = client.get(), client.get()
    client.socket.close()
    with RawClient(port) as other:
        other.login().subscribe()
        third = other.get()
        assert kinds([first, second, third]) == WHOLE[: sum(len(batch.entries) for batch in (first, second, third))]
        other.ack(first.id)
        other.rollback()
        assert kinds([other.get()]) == kinds([second])


def test_a_server_that_stops_keeps_what_was_acked(tmp_path: Path, served: ServedDestination) -> None:
    with listening([served]) as port, RawClient(port) as client:
        client.login().subscribe()
        done = client.get()
        client.ack(done.id)
        lost = client.get()
    with listening([served_destination(tmp_path)]) as port, RawClient(port) as client:
        client.login().subscribe()
        repeated = client.get()
        assert kinds([repeated]) == kinds([lost])
        assert repeated.id > lost.id
        client.ack(lost.id)
        with pytest.raises(CanalRefusedError, match="is not exist"):
            client.expect_ack()


def test_two_client_ids_get_everything_each(port: int, client: RawClient) -> None:
    assert kinds(everything(client)) == WHOLE
    with RawClient(port, client_id="1002") as other:
        other.login().subscribe()
        assert kinds(everything(other)) == WHOLE


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (r".*\..*", WHOLE),
        (r"BAT\.O", WHOLE),
        (r"shop\..*,bat\.o", WHOLE),
        (r"shop\..*", []),
        (r"bat\.o2", []),
    ],
)
def test_filters(client: RawClient, expression: str, expected: list[Any]) -> None:
    client.unsubscribe()
    client.subscribe(expression)
    assert kinds(everything(client)) == expected


@pytest.mark.parametrize("expression", ["(", r"(.)\1", "a(?=b)", "a{9999}", "(a{500}){500}", "x" * 5000])
def test_wrong_filters_are_refused(client: RawClient, expression: str) -> None:
    with pytest.raises(CanalRefusedError, match="the filter") as refused:
        client.subscribe(expression)
    assert refused.value.code == 400
    assert client.get().id != -1, "the subscription stays as it was"


@pytest.mark.parametrize("expression", [r"(\w|\w\w)" * 28 + "!", "((.+)+)+!"])
def test_an_expression_that_other_engines_match_for_hours(client: RawClient, expression: str) -> None:
    begin = time.monotonic()
    client.unsubscribe()
    client.subscribe(expression)
    assert everything(client) == []
    assert time.monotonic() - begin < 60


def test_time_outs(client: RawClient) -> None:
    for _ in range(3):  # a DDL statement is a batch of its own, and ends the one before it: neither is waited for
        client.get(1 << 20, timeout_ms=60_000)
    begin = time.monotonic()
    assert client.get(1 << 20, timeout_ms=300).id != -1
    assert 0.25 < time.monotonic() - begin < 30, "a batch that is not full is waited for"
    while client.get().id != -1:
        pass
    begin = time.monotonic()
    assert client.get(timeout_ms=300).id == -1
    assert 0.25 < time.monotonic() - begin < 30
    client.ask(timeout_ms=0)
    client.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        client.receive()


def test_a_client_that_did_not_subscribe_is_told_so(port: int) -> None:
    with RawClient(port) as client:
        client.login()
        client.rollback()  # clients do so before they subscribe
        with pytest.raises(CanalRefusedError, match="should subscribe first") as refused:
            client.get()
        assert refused.value.code == 400


def test_a_login_with_destination_subscribes(port: int) -> None:
    with RawClient(port) as client:
        client.login(destination=data(5, "shop"), client=data(6, "1001"), filter=data(7, r".*\..*"))
        assert client.get().id != -1


def test_errors_are_packets_of_canal(port: int) -> None:
    with RawClient(port) as client:
        client.login()
        for kind, body, code in [
            (p.SUBSCRIPTION, b"", 401),
            (p.GET, data(1, "shop"), 401),
            (p.CLIENT_ACK, data(2, "1001"), 401),
            (p.CLIENT_ROLLBACK, b"", 401),
            (p.UNSUBSCRIPTION, b"", 401),
            (p.CLIENT_ACK, data(1, "shop") + data(2, "1001"), 402),
            (99, b"", 400),
            (p.SUBSCRIPTION, data(1, "shed") + data(2, "1001"), 400),
            (p.SUBSCRIPTION, data(1, "shop") + data(2, "me"), 400),
            (p.SUBSCRIPTION, data(1, "shop") + data(2, "40000"), 400),
            (p.GET, b"\xff", 400),
            (p.GET, data(1, "shop") + data(2, "1001") + number(4, 5) + number(5, 9), 400),
        ]:
            client.send(kind, body)
            with pytest.raises(CanalRefusedError) as refused:
                client.expect_ack()
            assert refused.value.code == code, (kind, body)
        client.send(p.HEARTBEAT, b"")
        client.expect_ack()


@pytest.mark.parametrize("compression", [p.ZLIB, p.GZIP])
def test_an_answer_is_compressed_as_its_request(client: RawClient, compression: int) -> None:
    import gzip
    import zlib

    pack = zlib.compress if compression == p.ZLIB else gzip.compress
    unpack = zlib.decompress if compression == p.ZLIB else gzip.decompress
    body = data(1, "shop") + data(2, "1001") + number(3, 1000) + number(4, -1)
    client.send(p.GET, pack(body), compression)
    kind, packed, used = client.receive()
    assert (kind, used) == (p.MESSAGES, compression)
    assert parsed("Messages", unpack(packed)).batch_id > 0


def test_passwords(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "canal.password").write_text("secret\n")
    served = served_destination(tmp_path, password_file="canal.password")
    with listening([served]) as port:
        with RawClient(port) as client:
            client.login(password="secret")
        for user, password in (("canal", None), ("canal", "Secret"), ("root", "secret")):
            with RawClient(port) as client:
                with pytest.raises(CanalRefusedError, match=f"auth failed for user:{user}"):
                    client.login(user, password)
                with pytest.raises(CanalRefusedError, match="log in first"):
                    client.subscribe()
        with RawClient(port) as client:
            for _ in range(3):
                with pytest.raises(CanalRefusedError):
                    client.login(password="wrong")
            with pytest.raises(ConnectionError):
                client.login(password="secret")


def test_the_next_batch_is_made_ahead_and_is_the_same(
    served: ServedDestination, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has fallen behind gets what it would have got, whatever it does with a batch that was made
    ahead."""
    made: list[int | None] = []
    prepare = ClientCursor.prepare

    def noted(cursor: ClientCursor, max_bytes: int) -> int | None:
        made.append(prepare(cursor, max_bytes))
        return made[-1]

    with RawClient(port, client_id="1") as plain:
        plain.login().subscribe()
        with monkeypatch.context() as patched:
            patched.setattr(ClientCursor, "prepare", lambda cursor, max_bytes: None)
            expected = [entry for batch in everything(plain, 1) for entry in batch.entries]
    monkeypatch.setattr(ClientCursor, "prepare", noted)
    dice = random.Random(3)
    for client_id in range(2, 5):
        seen: list[Any] = []
        with RawClient(port, client_id=str(client_id)) as client:
            client.login().subscribe()
            while True:
                batch = client.get(1)
                if dice.random() < 0.5:
                    time.sleep(0.01)  # time to make the next one
                what = dice.random()
                if what < 0.2:
                    client.rollback(batch.id if batch.id != -1 else 0)
                    continue
                if batch.id == -1:
                    break
                if what < 0.4:  # another one before the ack, with another limit, and both are rolled back
                    client.get(dice.choice([1, 2]))
                    client.rollback()
                    continue
                client.ack(batch.id)
                seen += batch.entries
        assert seen == expected
    assert any(ahead is not None for ahead in made)


def test_a_fault_in_a_batch_that_is_made_ahead_comes_when_the_client_asks(
    served: ServedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cursor: ClientCursor, max_bytes: int) -> Any:
        raise StorageError("the disk is gone")

    cursor = ClientCursor(served, 5, UTC)
    cursor.subscribe(None, keep=True)
    first, second = cursor.take(1024), cursor.take(1024)
    assert first is not None and second is not None
    with monkeypatch.context() as patched:
        patched.setattr(ClientCursor, "_make", fail)
        assert cursor.prepare(1024) is None
        cursor.ack(first[0])  # what the client has is still its own
    with pytest.raises(StorageError, match="the disk is gone"):
        cursor.take(1024)
    assert cursor.take(1024) is not None  # then from the first entry on that is not acked
    cursor.forget()


def test_a_batch_that_is_made_ahead_is_dropped_if_nobody_asks(
    served: ServedDestination, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canal_clients, "_PREPARED_S", 0.05)
    dropped = threading.Event()
    drop = ClientCursor.drop_prepared

    def noted(cursor: ClientCursor, batch: int) -> None:
        drop(cursor, batch)
        dropped.set()

    monkeypatch.setattr(ClientCursor, "drop_prepared", noted)
    with RawClient(port) as client:
        client.login().subscribe()
        while not dropped.is_set():  # the first ones may be small
            before = client.get(1)
            assert before.id != -1
            client.ack(before.id)
            dropped.wait(0.3)
        after = client.get(1)
        assert after.entries and after.entries != before.entries
        client.ack(after.id)


def test_a_batch_ends_with_what_the_store_had_when_it_was_asked_for(
    served: ServedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy source commits faster than leases are taken: a batch that followed it would be late by seconds."""
    cursor = ClientCursor(served, 6, UTC)
    cursor.subscribe(None, keep=True)
    newest = served.reader().last_seq()
    first = served.reader().select(0, Limits(max_bytes=1 << 30, max_transactions=1))
    assert first is not None and newest is not None and first.last_seq < newest
    with monkeypatch.context() as patched:  # the rest comes while the batch is made
        patched.setattr(StoreReader, "last_seq", lambda reader: first.last_seq)
        early = cursor.take(1 << 30)
    late = cursor.take(1 << 30)
    assert early is not None and late is not None
    assert early[1][-1].done_seq == first.last_seq
    assert late[1][-1].done_seq > first.last_seq
    cursor.forget()


def test_a_packet_that_is_written_apart_from_its_length_is_answered_without_delay(client: RawClient) -> None:
    """Canal's clients write in this way. Their kernel holds a packet back until its length is confirmed, and ours would
    wait 40 ms with that."""
    packet = number(2, 1) + number(3, p.GET) + data(5, data(1, "shop") + data(2, "1001") + number(3, 1))
    client.ack(client.get().id)
    seconds = []
    for _ in range(40):
        began = time.monotonic()
        client.socket.sendall(len(packet).to_bytes(4, "big"))
        client.socket.sendall(packet)
        client.answer()
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 0.03, seconds

"""The connectors behave the same over TCP and in this process: the promises of :class:`cdc.connector.Connector`."""

from __future__ import annotations

import re
import runpy
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import (
    BatchError,
    BatchOrderError,
    ConfigError,
    DamagedError,
    LeaseHeldError,
    PeerUnavailableError,
    UsageError,
)
from cdc.connector import Batch, Connector, connect, open_embedded
from cdc.connector.entries import parse_entry
from cdc.connector.tcp import TcpConnector
from cdc.server.destinations import ServedDestination
from tests.support.canal_client import listening
from tests.support.proxy import Proxy
from tests.unit.server.test_canal import served_destination

Make = Callable[[], Connector]
ROOT = Path(__file__).resolve().parents[3]
WHOLE = [
    ("ddl", "create"),
    *[("begin", ""), ("rows", "insert"), ("end", "")] * 4,
    *[("begin", ""), ("rows", "update"), ("end", "")],
    ("ddl", "alter"),
    *[("begin", ""), ("rows", "delete"), ("end", "")],
]


@pytest.fixture
def served(tmp_path: Path) -> ServedDestination:
    return served_destination(tmp_path)


@pytest.fixture(params=["tcp", "embedded"])
def make(request: pytest.FixtureRequest, served: ServedDestination) -> Iterator[Make]:
    """Makes a connector with the client id 1001, which is connected."""
    if request.param == "embedded":
        yield lambda: open_embedded(served.config.file.parent, "shop")
        return
    with listening([served]) as port:
        yield lambda: connect(f"127.0.0.1:{port}", "shop", retry_for_s=2)


@pytest.fixture
def connector(make: Make) -> Iterator[Connector]:
    with make() as connected:
        connected.subscribe()
        yield connected


def kinds(batches: list[Batch]) -> list[tuple[str, str]]:
    return [(entry.kind, entry.event) for batch in batches for entry in batch.entries]


def test_all_entries_come_once_in_order(connector: Connector) -> None:
    batches = list(connector.batches(idle_s=0))
    assert kinds(batches) == WHOLE
    assert not connector.get_without_ack()
    entries = [entry for batch in batches for entry in batch.entries]
    assert {entry.file for entry in entries} == {"binlog.000007"}
    assert [entry.pos for entry in entries] == sorted(entry.pos for entry in entries)
    inserts = [row for entry in entries if entry.event == "insert" for row in entry.rows]
    assert inserts and all(row.before == () and row.key and all(c.updated for c in row.after) for row in inserts)
    for updated in (row for entry in entries if entry.event == "update" for row in entry.rows):
        changed = {c.name for c in updated.after if c.updated}
        assert changed == {name for name in updated.new if updated.new[name] != updated.old[name]} and changed
    for deleted in (row for entry in entries if entry.event == "delete" for row in entry.rows):
        assert deleted.after == () and deleted.key == {name: deleted.old[name] for name in deleted.key}
    ddl = [entry for entry in entries if entry.kind == "ddl"]
    assert [(change.name, change.sql.split()[0], change.rows) for change in ddl] == [
        ("bat.o", "create", ()),
        ("bat.o", "alter", ()),
    ]
    assert all(entry.gtid for entry in entries) and all(
        entry.transaction_id for entry in entries if entry.kind == "end"
    )
    assert all(entry.time.year >= 2024 and entry.time.tzinfo is not None for entry in entries)


def test_batches_are_acked_in_order(connector: Connector) -> None:
    first, second = connector.get_without_ack(), connector.get_without_ack()
    assert connector.holds(first.id) and connector.holds(second.id)
    with pytest.raises(BatchOrderError, match=str(first.id)):
        connector.ack(second.id)
    connector.ack(first.id)
    connector.ack(second.id)
    for batch in (first.id, second.id, 1 << 40):
        with pytest.raises(BatchError, match="is not there"):
            connector.ack(batch)


def test_what_is_rolled_back_comes_again_under_new_ids(connector: Connector) -> None:
    first, second, third = (connector.get_without_ack() for _ in range(3))
    connector.rollback(second.id)
    repeated = [connector.get_without_ack() for _ in range(2)]
    assert kinds(repeated) == kinds([second, third])
    assert min(batch.id for batch in repeated) > third.id
    with pytest.raises(BatchError):
        connector.rollback(second.id)
    connector.rollback()
    assert kinds(list(connector.batches(idle_s=0))) == WHOLE
    assert kinds([first, second, third]) == WHOLE[: sum(len(batch.entries) for batch in (first, second, third))]


def test_what_is_not_acked_comes_again_to_the_next_connection(make: Make) -> None:
    with make() as first:
        first.subscribe()
        first.get()
        first.get_without_ack()
    with make() as second:
        second.subscribe()
        assert kinds(list(second.batches(idle_s=0))) == WHOLE[1:]
    with make() as third:
        third.subscribe()
        assert not third.get_without_ack()
        third.unsubscribe()
        with pytest.raises(UsageError, match="subscribe"):
            third.get_without_ack()
        third.subscribe()
        assert third.get_without_ack(), "a new subscription begins at the store's first transaction"


def test_a_loop_that_ends_early_has_not_acked_its_batch(make: Make) -> None:
    with make() as first:
        first.subscribe()
        for batch in first:
            if batch.entries[0].kind != "ddl":
                break
    with make() as second:
        second.subscribe()
        assert kinds([second.get_without_ack()]) == kinds([batch])


def test_a_filter_and_bad_requests(connector: Connector) -> None:
    connector.subscribe(r"other\..*")
    assert kinds(list(connector.batches(idle_s=0))) == []
    with pytest.raises(UsageError):
        connector.subscribe("(a(?=b))")
    with pytest.raises(UsageError, match="timeout_s is 0"):
        connector.get_without_ack(timeout_s=0)
    assert not connector.get_without_ack(timeout_s=0.1), "it goes on after a refusal"


def test_only_one_process_embeds_a_client_id(served: ServedDestination) -> None:
    folder = served.config.file.parent
    with open_embedded(folder, "shop"), open_embedded(folder, "shop", client_id=7), pytest.raises(LeaseHeldError):
        open_embedded(folder, "shop")


# --- over TCP


def test_a_lost_connection_is_opened_again_and_its_batches_come_again(served: ServedDestination) -> None:
    with listening([served]) as port, Proxy(port) as proxy, _connected(proxy.port, retry_for_s=10) as connector:
        connector.subscribe()
        first = connector.get_without_ack()
        proxy.cut()
        repeated = connector.get_without_ack()
        assert kinds([repeated]) == kinds([first])
        with pytest.raises(BatchError, match="its connection was lost"):
            connector.ack(first.id)
        connector.ack(repeated.id, confirm=True)
        held = connector.get_without_ack()
        proxy.cut()
        with pytest.raises(BatchError, match="the connection was lost"):
            connector.ack(held.id, confirm=True)
        assert not connector.holds(held.id)
        assert kinds(list(connector.batches(idle_s=0))) == WHOLE[1:]


def _connected(port: int, **options: Any) -> TcpConnector:
    return connect(f"127.0.0.1:{port}", "shop", **options)


def test_a_refused_ack_is_noticed(served: ServedDestination) -> None:
    """Another connection with the same client id rolls back: the server does not know the batch any more."""
    with listening([served]) as port, _connected(port) as mine, _connected(port) as other:
        mine.subscribe()
        batch = mine.get_without_ack()
        other.rollback(confirm=True)
        with pytest.raises(BatchError, match="is not exist"):
            mine.ack(batch.id, confirm=True)
        mine.rollback(confirm=True)
        batch = mine.get_without_ack()
        other.rollback(confirm=True)
        mine.ack(batch.id)  # the refusal comes with the next answer, and is about this ack
        assert kinds(list(mine.batches(idle_s=0))) == WHOLE


def test_a_wrong_password_a_closed_port_and_another_server(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "secret").write_text("right")
    served = served_destination(tmp_path, user="canal", password_file="secret")
    with listening([served]) as port:
        with connect(f"127.0.0.1:{port}", "shop", user="canal", password="right") as connector:
            connector.subscribe()
            assert connector.get_without_ack()
        with pytest.raises(ConfigError, match="refuses the login: auth failed"):
            connect(f"127.0.0.1:{port}", "shop", user="canal", password="wrong")
        with pytest.raises(UsageError, match="destination:other should start first"):
            connect(f"127.0.0.1:{port}", "other", user="canal", password="right").subscribe()
    with pytest.raises(PeerUnavailableError, match="did not answer"):
        connect(f"127.0.0.1:{port}", "shop", retry_for_s=0.2)
    with pytest.raises(ConfigError, match="write host:port"):
        connect("localhost", "shop")
    with socket.create_server(("127.0.0.1", 0)) as other:
        greeting = b"SSH-2.0-OpenSSH_9.6\r\n"

        def greet() -> None:
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(greeting)

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(PeerUnavailableError, match=r"sends a packet of|closed the connection|no packet"):
            connect(f"127.0.0.1:{other.getsockname()[1]}", "shop", retry_for_s=0.2)


def test_entries_that_are_cut_are_refused(served: ServedDestination) -> None:
    with listening([served]) as port, connect(f"127.0.0.1:{port}", "shop") as connector:
        connector.subscribe()
        messages = [message for batch in connector.batches(idle_s=0) for message in batch.messages]
    seen = 0
    for message in messages:
        for size in range(len(message)):
            try:
                entry = parse_entry(message[:size])
                assert entry.rows is not None
            except DamagedError:
                seen += 1
    assert seen > len(messages)


def test_the_example_of_the_page_runs(
    served: ServedDestination, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "how-to" / "python-clients.md").read_text()
    match = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert match is not None
    with listening([served]) as port:
        text = match[1].replace("127.0.0.1:11111", f"127.0.0.1:{port}").replace(r"shop\..*", r"bat\..*")
        program = tmp_path / "program.py"
        program.write_text(text)
        # The program never ends by itself.
        original = TcpConnector.batches
        monkeypatch.setattr(TcpConnector, "batches", lambda self, *a, **k: original(self, idle_s=0.1))
        runpy.run_path(str(program))
    lines = capsys.readouterr().out.splitlines()
    words = [line.split()[0] for line in lines]
    assert list(dict.fromkeys(words)) == ["create", "insert", "update", "alter", "delete"]
    assert all("bat.o" in line for line in lines if not line.startswith(("create", "alter")))

"""A client against servers that lie, are slow, break off, are newer, or come back."""

from __future__ import annotations

import hashlib
import json
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cdc.base.errors import (
    BatchOrderError,
    CdcError,
    ConfigError,
    DamagedError,
    LeaseHeldError,
    NotLeaderError,
    PeerUnavailableError,
    PermanentError,
    RetryableError,
    VersionError,
)
from cdc.binlog.entry import ENTRY_SIZE
from cdc.client import connect, open_store
from cdc.config import load
from cdc.decode.transactions import open_range
from cdc.lake.runtime.failures import ConcurrentCommitError
from cdc.server.destinations import ServedDestination
from cdc.store.reader.staged import local_copy, staged_entries
from cdc.wire import connection as wire
from cdc.wire.connection import Connection
from cdc.wire.files import uri_of
from cdc.wire.protocol import error_document, error_of, status_of
from tests.support.server import TOKEN, client_config, in_thread, served_destination
from tests.support.unit_batches import make_config


def answer(
    body: bytes, status: int = 200, *, length: int | None = None, headers: str = "towpath-version: 9\r\n"
) -> bytes:
    """An HTTP answer, whose length may be wrong."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status} X\r\ncontent-length: {size}\r\nconnection: close\r\n{headers}\r\n".encode() + body


def result(value: object) -> bytes:
    return answer(json.dumps({"result": value}).encode())


def with_digest(body: bytes, said: bytes | None = None, **kwargs: int) -> bytes:
    digest = hashlib.sha256(body if said is None else said).hexdigest()
    return answer(body, headers=f"towpath-version: 9\r\ntowpath-sha256: {digest}\r\n", **kwargs)


@dataclass
class Script:
    """A server that gives one answer to each connection, then repeats the last; None: it closes the connection."""

    answers: list[bytes | None]
    requests: list[bytes] = field(default_factory=list)
    url: str = ""

    def connection(self, retry_for_s: float = 5) -> Connection:
        return Connection(self.url, "shop", TOKEN, retry_for_s=retry_for_s)


@contextmanager
def scripted(*answers: bytes | None) -> Iterator[Script]:
    script = Script(list(answers))
    with socket.create_server(("127.0.0.1", 0)) as server:
        script.url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    data = b""
                    while b"\r\n\r\n" not in data:
                        data += connection.recv(65536)
                    head, _, body = data.partition(b"\r\n\r\n")
                    length = next(
                        (int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length")),
                        0,
                    )
                    while len(body) < length:
                        body += connection.recv(65536)
                    script.requests.append(head + b"\r\n\r\n" + body)
                    next_answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                    if next_answer is not None:
                        connection.sendall(next_answer)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield script
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


# --- lost, short and false answers


@pytest.mark.parametrize(
    "bad",
    [
        None,
        b"HTTP/1.1 200",
        answer(b'{"resu', length=100),
        answer(b"busy", 503, headers=""),
        answer(b"", 502, headers=""),
    ],
    ids=["closed", "broken head", "truncated", "503", "502"],
)
def test_a_lost_answer_is_asked_for_again(bad: bytes | None) -> None:
    with scripted(bad, bad, result(7)) as server:
        assert server.connection().call("next_seq") == 7
        assert len(server.requests) == 3
        assert b"towpath-repeated: 1" in server.requests[2].lower() or b"503" in (bad or b"")


@pytest.mark.parametrize(
    "bad",
    [with_digest(b"abcX", b"abcd"), with_digest(b"abc"), with_digest(b"abcde"), answer(b"abcd")],
    ids=["changed", "short", "long", "no digest"],
)
def test_false_bytes_are_asked_for_again(bad: bytes) -> None:
    with scripted(bad, with_digest(b"abcd")) as server:
        assert server.connection().read("segments/x", 10, 14) == b"abcd"
        assert b"range: bytes=10-13" in server.requests[0].lower()
    with scripted(bad) as server, pytest.raises(PeerUnavailableError, match="did not answer bytes"):
        server.connection(0.2).read("segments/x", 10, 14)


def test_what_must_not_be_done_twice_is_not_repeated() -> None:
    with scripted(None, result(1)) as server:
        with pytest.raises(PeerUnavailableError):
            server.connection().call("unsubscribe", idempotent=False)
        assert len(server.requests) == 1


def test_a_server_that_is_gone_is_waited_for_and_then_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(
        PeerUnavailableError, match=rf"http://127.0.0.1:{port}/v1/shop: the server did not answer"
    ) as caught:
        Connection(f"http://127.0.0.1:{port}", "shop", TOKEN, retry_for_s=0.5).call("state")
    assert 0.4 < time.monotonic() - began < 30
    assert TOKEN not in str(caught.value)


def test_a_server_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(PeerUnavailableError):
            Connection(url, "silent", TOKEN, retry_for_s=0.3).call("state")


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_MOST_ANSWER_BYTES", 1000)
    with scripted(answer(b"x" * 5000)) as server, pytest.raises(ConfigError, match="more than 1000 bytes"):
        server.connection().call("state")


# --- other servers


@pytest.mark.parametrize(
    ("bytes_sent", "kind", "message"),
    [
        (answer(b"<html>not found", 404, headers=""), VersionError, "knows no state of version 1"),
        (answer(b"<html>welcome", 200, headers=""), ConfigError, "is not a server of Towpath"),
        (answer(b"moved", 302, headers="location: http://x/\r\n"), ConfigError, "is not a server of Towpath"),
        (answer(b"[]"), ConfigError, "something else than a result"),
        (
            answer(b'{"error": {"type": "VersionError", "message": "speaks version 2", "retryable": false}}', 404),
            VersionError,
            "speaks version 2",
        ),
        (
            answer(b'{"error": {"type": "OfTheFutureError", "message": "m", "retryable": true, "new": 1}}', 503),
            RetryableError,
            "m",
        ),
        (answer(b'{"error": {"type": "OfTheFutureError", "message": "m"}}', 422), PermanentError, "m"),
        (answer(b'{"error": {"type": "Exception", "message": "m"}}', 422), PermanentError, "m"),
    ],
)
def test_another_server_is_refused_clearly(bytes_sent: bytes, kind: type[CdcError], message: str) -> None:
    with scripted(bytes_sent) as server:
        with pytest.raises(kind, match=message):
            server.connection().call("state")
        assert len(server.requests) == 1


def test_errors_arrive_as_they_were_raised() -> None:
    for error in (
        LeaseHeldError("held by b", place="shop, subscriber apply", remedy="Wait."),
        BatchOrderError("batch 2 cannot be acked: batch 1 is due first"),
        PermanentError("x"),
    ):
        received = error_of(json.loads(json.dumps(error_document(error))))
        assert type(received) is type(error)
        assert str(received) == str(error)
    # A class of another package arrives as the nearest one that clients know.
    assert error_document(ConcurrentCommitError("x"))["error"]["type"] == "MergeFailedError"
    assert status_of(LeaseHeldError("x")) == 409


def test_the_token_is_in_a_header_and_nowhere_else() -> None:
    with scripted(result(1)) as server:
        connection = server.connection()
        connection.call("state", {"a": 1})
        [request] = server.requests
    first = request.split(b"\r\n", 1)[0]
    assert first == b"POST /v1/shop/state HTTP/1.1"
    assert request.count(TOKEN.encode()) == 1
    assert f"authorization: Bearer {TOKEN}".encode().lower() in request.lower()
    assert TOKEN not in repr(connection)
    assert pickle.loads(pickle.dumps(connection)) == connection


def test_proxies_of_the_environment_do_not_get_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(result(1)) as server, scripted(result(2)) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert server.connection().call("state") == 1
        assert proxy.requests == []


# --- the files of a store


@pytest.fixture
def served(tmp_path: Path) -> ServedDestination:
    return served_destination(tmp_path)


Uri = Callable[[str], str]


@pytest.fixture
def uri(served: ServedDestination, tmp_path: Path) -> Iterator[Uri]:
    with in_thread([served]) as url:
        connection = connect(client_config(served.config, tmp_path / "client", url))
        yield lambda path: uri_of(connection, path)


def test_ranges_and_entries_equal_those_of_the_file(served: ServedDestination, uri: Uri) -> None:
    [segment] = (served.config.store.path / "segments").glob("*.binlog")
    whole = open_range(segment)
    address = uri(f"segments/{segment.name}")
    for first, last in ((0, len(whole.entries)), (1, 3), (2, 3)):
        some = whole.entries[first:last]
        offset = int(some["offset"][0])
        length = int(some["offset"][-1]) + int(some["length"][-1]) - offset
        mapped = open_range(address, offset, length)
        assert mapped.entries.tobytes() == some.tobytes()
        assert mapped.buf[offset : offset + length].tobytes() == segment.read_bytes()[offset : offset + length]
        assert staged_entries(address, offset, length).tobytes() == some.tobytes()
        with pytest.raises(DamagedError, match="bytes of transactions in the range"):
            open_range(address, offset + 1, length)
    with local_copy(uri("schemas/1.json")) as copy:
        assert copy.read_bytes() == (served.config.store.path / "schemas" / "1.json").read_bytes()


def test_entries_of_a_range_come_in_pages(served: ServedDestination, uri: Uri, monkeypatch: pytest.MonkeyPatch) -> None:
    from cdc.server import operations

    monkeypatch.setattr(operations, "MOST_ENTRIES", 2)
    [segment] = (served.config.store.path / "segments").glob("*.binlog")
    whole = open_range(segment).entries
    offset = int(whole["offset"][0])
    length = int(whole["length"].sum())
    assert len(whole) > 4
    assert staged_entries(uri(f"segments/{segment.name}"), offset, length).tobytes() == whole.tobytes()


def test_a_damaged_entry_is_noticed(served: ServedDestination, uri: Uri) -> None:
    [segment] = (served.config.store.path / "segments").glob("*.binlog")
    whole = open_range(segment).entries
    index = segment.with_name(segment.name + ".index")
    data = bytearray(index.read_bytes())
    data[2 * ENTRY_SIZE + 24] ^= 1  # of the first transaction, behind the header and the position
    index.write_bytes(data)
    with pytest.raises(DamagedError, match="fails its checksum"):
        staged_entries(uri(f"segments/{segment.name}"), int(whole["offset"][0]), int(whole["length"].sum()))


def test_a_segment_that_is_gone_is_named(uri: Uri) -> None:
    with pytest.raises(DamagedError, match="missing"):
        open_range(uri("segments/000-0000001-00000000004.binlog"), 100, 100)


def test_a_process_without_the_token_says_so() -> None:
    with pytest.raises(ConfigError, match="has no token for this server"):
        open_range("towpath+https://elsewhere:1/v1/shop/segments/000-0000001-00000000004.binlog", 100, 100)


def test_the_store_of_a_client_tells_what_the_readers_does(served: ServedDestination, tmp_path: Path) -> None:
    local = served.reader()
    with in_thread([served]) as url:
        far = open_store(client_config(served.config, tmp_path / "client", url))
        last = local.last_entry()
        assert last is not None
        assert far.last_entry() == last
        assert far.entry_at(int(last["seq"]) - 1) == local.entry_at(int(last["seq"]) - 1)
        assert far.commit_position(last) == local.commit_position(last)
        assert b"".join(e.tobytes() for e in far.all_entries()) == b"".join(e.tobytes() for e in local.all_entries())
        for name in (
            "exists", "beginning", "first_seq", "removed_seq", "last_seq", "complete_until_us", "totals", "capture_state",
            "table_names", "segment_starts", "newest_schemas", "check_files",
        ):  # fmt: skip
            assert getattr(far, name)() == getattr(local, name)(), name
        time_us = int(last["commit_time_us"])
        assert far.find_by_commit_time(time_us) == local.find_by_commit_time(time_us)
        assert far.find_by_store_time(0) == local.find_by_store_time(0)
        assert far.backlog(0) == local.backlog(0)
        assert far.schemas(0) == local.schemas(0)
        assert far.table_mask("bat.o") == local.table_mask("bat.o") != 0
        assert far.table_mask("no.such") == 0
        far.require_kept(0)


# --- the client's configuration


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("{kind: server, token_env: T}", "kind server needs url"),
        ("{kind: server, url: 'https://h:1'}", "needs token_env or token_file"),
        (
            "{kind: server, url: 'https://h:1', token_env: T, token_file: t}",
            "token_env and token_file contradict each other",
        ),
        ("{kind: server, url: 'https://h:1', token_env: T, path: x}", "path is set where the server runs"),
        ("{kind: server, url: 'https://h:1', token_env: T, flush: async}", "flush is set where the server runs"),
        ("{kind: server, url: 'http://h:1', token_env: T}", "in clear"),
        ("{kind: server, url: 'https://u:p@h:1', token_env: T}", "must not hold a user or a password"),
        ("{kind: server, url: 'ftp://h', token_env: T}", "is not the address of a server"),
        ("{kind: server, url: 'https://h/v1/shop', token_env: T}", "is not the address of a server"),
        ("{url: 'https://h:1', path: x}", "url belongs to kind: server"),
        ("{}", "path is missing"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, store: str, message: str) -> None:
    file = tmp_path / "conf" / "shop.yaml"
    file.parent.mkdir()
    file.write_text(
        "source: {url: 'mysql://c@h', server_id: 3}\ntables: {include: ['s\\..*']}\n"
        f"store: {store}\napply: {{target: lake}}\n"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        load(file)
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("section", ["meta: {path: m}", "server: {tokens: {apply: {env: T}}}"])
def test_what_belongs_to_the_server_is_refused_at_a_client(tmp_path: Path, section: str) -> None:
    file = tmp_path / "conf" / "shop.yaml"
    file.parent.mkdir()
    file.write_text(
        "source: {url: 'mysql://c@h', server_id: 3}\ntables: {include: ['s\\..*']}\n"
        f"store: {{kind: server, url: 'https://h:1', token_env: T}}\napply: {{target: lake}}\n{section}\n"
    )
    with pytest.raises(ConfigError, match=r"and store\.kind: server contradict each other"):
        load(file)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("{host: 0.0.0.0, tokens: {a: {env: T}}}", "needs certificate and key"),
        ("{certificate: c.pem}", "certificate and key belong together"),
        ("{tokens: {a: {}}}", "needs one of env, file"),
        ("{tokens: {../a: {env: T}}}", "cannot be the name of a subscriber"),
    ],
)
def test_settings_of_the_server_are_checked(tmp_path: Path, server: str, message: str) -> None:
    config = make_config(tmp_path)
    config.file.write_text(config.file.read_text() + f"server: {server}\n")
    with pytest.raises(ConfigError, match=message):
        load(config.file)


def test_what_needs_the_disk_says_where_it_is(tmp_path: Path) -> None:
    config = client_config(make_config(tmp_path), tmp_path / "client", "https://store.example:8040")
    for section in (config.store, config.meta):
        with pytest.raises(ConfigError, match="this needs the disk of the store, which is on another machine"):
            _ = section.path
    assert config.store.place == "https://store.example:8040"


# --- several servers, of which one leads


def not_leading(leader: str | None) -> bytes:
    document = error_document(NotLeaderError("does not lead", place="shop", leader=leader))
    return answer(json.dumps(document).encode(), 421)


def of_epoch(value: object, epoch: int) -> bytes:
    return answer(json.dumps({"result": value}).encode(), headers=f"towpath-version: 9\r\ntowpath-epoch: {epoch}\r\n")


def test_a_client_follows_to_the_leader_and_stays_there() -> None:
    with scripted(result(7)) as leads, scripted(not_leading(leads.url)) as waits:
        connection = Connection(f"{waits.url},{leads.url}", "shop", TOKEN, retry_for_s=60)
        began = time.monotonic()
        assert connection.call("next_seq") == 7 and connection.call("next_seq") == 7
        assert time.monotonic() - began < 30
        assert len(waits.requests) == 1 and len(leads.requests) == 2
        assert connection.place == f"{waits.url}/v1/shop", "files are named by the first server, whichever answers"


def test_the_token_goes_to_no_other_server_than_the_configured_ones() -> None:
    with (
        scripted(result(7)) as foreign,
        scripted(not_leading(foreign.url)) as first,
        scripted(not_leading(None)) as second,
    ):
        with pytest.raises(NotLeaderError, match="does not lead"):
            Connection(f"{first.url},{second.url}", "shop", TOKEN, retry_for_s=1).call("next_seq")
        assert not foreign.requests and first.requests and second.requests


def test_two_servers_that_each_name_the_other_are_asked_with_pauses() -> None:
    with scripted(not_leading(None)) as first, scripted(not_leading(first.url)) as second:
        first.answers = [not_leading(second.url)]
        with pytest.raises(NotLeaderError):
            Connection(f"{first.url},{second.url}", "shop", TOKEN, retry_for_s=1).call("next_seq")
        assert len(first.requests) + len(second.requests) < 40


def test_a_client_goes_on_with_another_server_when_one_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with scripted(result(7)) as leads:
        assert Connection(f"{gone},{leads.url}", "shop", TOKEN, retry_for_s=5).call("next_seq") == 7
        with pytest.raises(PeerUnavailableError):
            Connection(gone, "shop", TOKEN, retry_for_s=0.3).call("next_seq")


def test_an_answer_of_a_former_leader_is_not_taken() -> None:
    """It was paused between its last look and its answer."""
    with scripted(of_epoch(8, 5)) as new, scripted(of_epoch(7, 4)) as old:
        connection = Connection(f"{old.url},{new.url}", "shop", TOKEN, retry_for_s=5)
        assert connection.call("next_seq") == 7
        old.answers = [not_leading(new.url), of_epoch(7, 4)]
        assert connection.call("next_seq") == 8
        new.answers = [not_leading(old.url), of_epoch(8, 5)]
        assert connection.call("next_seq") == 8, "the answer of epoch 4 came between the two of epoch 5"
        assert len(old.requests) == 3

"""A dump over TLS: the records that have arrived are read at once, and an error waits for the bytes before it."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cdc.base.errors import SourceUnavailableError
from cdc.config import SourceConfig
from cdc.source.dump import DumpStream

RECORD = b"x" * 16_384


def certificate(folder: Path) -> Path:
    """A self-signed certificate and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "source")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[DumpStream, ssl.SSLSocket]]:
    """A stream over TLS, and the server's end of its connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    plain = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate(tmp_path))
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname, client_side.verify_mode = False, ssl.CERT_NONE
    server = server_side.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
    client = client_side.wrap_socket(plain, do_handshake_on_connect=False)
    _shake_hands(client, server)
    stream = DumpStream.__new__(DumpStream)
    stream._source = SourceConfig(url="mysql://u@127.0.0.1:1", server_id=1, start="earliest")
    stream._socket, stream._poll_s, stream._silent_s, stream._failure = client, 0.2, 0.0, None
    client.settimeout(0.2)
    server.settimeout(10)
    yield stream, server
    for end in (client, server, listener):
        end.close()


def _shake_hands(*ends: ssl.SSLSocket) -> None:
    waiting = list(ends)
    for end in ends:
        end.settimeout(0.01)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except TimeoutError:
                continue


def test_records_that_have_arrived_are_read_at_once(ends: tuple[DumpStream, ssl.SSLSocket]) -> None:
    stream, server = ends
    for _ in range(4):
        server.sendall(RECORD)
    buffer = memoryview(bytearray(1 << 20))
    assert stream.recv_into(buffer) > len(RECORD)
    server.sendall(b"end")
    total = stream.recv_into(buffer)
    assert bytes(buffer[total - 3 : total]) == b"end"
    assert stream.recv_into(buffer) == 0, "nothing has arrived within the time"


def test_bytes_are_handed_over_before_the_end_of_the_connection(ends: tuple[DumpStream, ssl.SSLSocket]) -> None:
    stream, server = ends
    server.sendall(RECORD)
    server.sendall(b"end")
    server.close()
    received = bytearray()

    def read_all() -> None:
        buffer = memoryview(bytearray(1 << 20))
        while n := stream.recv_into(buffer):
            received.extend(buffer[:n])

    with pytest.raises(SourceUnavailableError):
        read_all()
    assert bytes(received) == RECORD + b"end"


def test_an_error_behind_bytes_is_raised_at_the_next_read(
    ends: tuple[DumpStream, ssl.SSLSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, server = ends
    server.sendall(RECORD)
    buffer = memoryview(bytearray(1 << 20))
    recv_into = ssl.SSLSocket.recv_into
    calls = 0

    def fails_later(self: ssl.SSLSocket, into: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionResetError(104, "Connection reset by peer")
        return recv_into(self, into)

    monkeypatch.setattr(ssl.SSLSocket, "recv_into", fails_later)
    assert stream.recv_into(buffer) == len(RECORD)
    with pytest.raises(SourceUnavailableError, match="reset by peer"):
        stream.recv_into(buffer)
    assert calls == 2, "the failed connection is not read again"

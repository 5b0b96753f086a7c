"""One connection to a server of Canal's protocol: packets, login, requests and their answers."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from cdc.base.addresses import Address
from cdc.base.errors import ConfigError, PeerUnavailableError, UsageError
from cdc.canal import packets as p
from cdc.canal.messages import Ack, ClientAck, ClientAuth, Get, Handshake, MalformedError, Message, Sub, parsed
from cdc.connector.base import EMPTY, Batch
from cdc.connector.entries import parse_messages
from cdc.wire.sockets import DEAD_PEER

_M = TypeVar("_M", bound="Message")
_MOST_BYTES, _MOST_GREETING_BYTES = (1 << 31) - 1, 1 << 16
_RECEIVE_BYTES = 1 << 20
_MILLISECONDS = 2


@dataclass(frozen=True)
class Login:
    """The login of a client."""

    destination: str
    client_id: int
    user: str = ""
    password: str | None = None
    tls: ssl.SSLContext | None = None
    connect_timeout_s: float = 10.0
    answer_timeout_s: float = 60.0
    """The time that an answer may take, besides the time that the server was asked to wait."""


class LostError(Exception):
    """The connection is lost, or the other side is no server of Canal's protocol."""


class RefusedError(Exception):
    """An error packet of the server: its text."""


class Link:
    """A connection that is logged in."""

    def __init__(self, address: Address, login: Login) -> None:
        """Raises LostError, and ConfigError if the server refuses the login."""
        self.address = address
        self._login = login
        self.unanswered = False
        """Whether an ack or a rollback was sent after the last answer: an error packet may be about it."""
        self.doubtful = False
        """Whether an ack, or the rollback of a batch, is among these, which a server refuses if it lost the batch."""
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout=login.connect_timeout_s)
            if login.tls is not None:
                self._socket = login.tls.wrap_socket(self._socket, server_hostname=address.host)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in DEAD_PEER:
                self._socket.setsockopt(*option)
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"the server's certificate is not trusted: {error.verify_message}",
                place=str(address),
                remedy="Give a context with the certificate of the CA that signed it.",
            ) from None
        except OSError as error:
            raise LostError(str(error)) from None
        try:
            self._log_in()
        except BaseException:
            self.close()
            raise

    def _log_in(self) -> None:
        login = self._login
        kind, body = self._receive(login.connect_timeout_s, _MOST_GREETING_BYTES)
        if kind == p.ACK:  # the server is full
            raise LostError(_error_of(body) or "the server greets with an ack")
        if kind != p.HANDSHAKE:
            raise LostError("it does not greet as a server of Canal's protocol")
        seed = _message(Handshake, body).seeds
        secret = b"" if login.password is None else p.scramble(login.password, seed)
        self._send(p.CLIENT_AUTHENTICATION, ClientAuth(username=login.user, password=secret).SerializeToString())
        try:
            self._expect_ack()
        except RefusedError as error:
            raise ConfigError(
                f"the server refuses the login: {error}", place=str(self.address), remedy="Correct user or password."
            ) from None

    # --- requests

    def subscribe(self, table_filter: str) -> None:
        """Raises RefusedError, LostError."""
        self._send(p.SUBSCRIPTION, self._named(Sub, filter=table_filter))
        self._expect_ack()

    def unsubscribe(self) -> None:
        """Raises RefusedError, LostError."""
        self._send(p.UNSUBSCRIPTION, self._named(Sub))
        self._expect_ack()

    def get(self, size: int, timeout_s: float | None) -> Batch:
        """Raises RefusedError, LostError."""
        timeout, unit = (-1, -1) if timeout_s is None else (max(1, round(timeout_s * 1000)), _MILLISECONDS)
        self._send(p.GET, self._named(Get, fetch_size=size, timeout=timeout, unit=unit))
        kind, body = self._receive(self._login.answer_timeout_s + (timeout_s or 0))
        if kind == p.ACK:
            raise RefusedError(_error_of(body) or "the server answers a get with an ack")
        if kind != p.MESSAGES:
            raise LostError(f"it answers a get with a packet of type {kind}")
        self._answered()
        batch, entries = parse_messages(body)
        return EMPTY if batch == p.NO_BATCH or not entries else Batch(batch, tuple(entries))

    def ack(self, batch: int) -> None:
        """Sends an ack, which a server answers only if it is an error. Raises LostError."""
        self._send(p.CLIENT_ACK, self._named(ClientAck, batch_id=batch))
        self.unanswered = self.doubtful = True

    def rollback(self, batch: int) -> None:
        """Sends a rollback, likewise; 0: of all."""
        self._send(p.CLIENT_ROLLBACK, self._named(ClientAck, batch_id=batch))
        self.unanswered = True
        self.doubtful = self.doubtful or batch != 0

    def settle(self) -> None:
        """Waits until the server has answered the acks and rollbacks that were sent, by a heartbeat behind them. Not
        with Canal's server. Raises RefusedError with the first error, LostError."""
        self._send(p.HEARTBEAT, b"")
        refused: RefusedError | None = None
        while True:
            kind, body = self._receive(self._login.answer_timeout_s)
            if kind != p.ACK:
                raise LostError(f"it answers a heartbeat with a packet of type {kind}")
            text = _error_of(body)
            if text is None:
                break
            refused = refused or RefusedError(text)
        self._answered()
        if refused is not None:
            raise refused

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    # --- packets

    def _named(self, kind: type[Message], **fields: Any) -> bytes:
        """Returns a request of this client id."""
        login = self._login
        request: bytes = kind(
            destination=login.destination, client_id=str(login.client_id), **fields
        ).SerializeToString()
        return request

    def _send(self, kind: int, body: bytes) -> None:
        try:
            self._socket.settimeout(self._login.answer_timeout_s)
            self._socket.sendall(p.framed(kind, body))
        except OSError as error:
            raise LostError(str(error)) from None

    def _expect_ack(self) -> None:
        kind, body = self._receive(self._login.answer_timeout_s)
        if kind != p.ACK:
            raise LostError(f"it answers with a packet of type {kind} instead of an ack")
        text = _error_of(body)
        if text is not None:
            raise RefusedError(text)
        self._answered()

    def _answered(self) -> None:
        self.unanswered = self.doubtful = False

    def _receive(self, timeout_s: float, most_bytes: int = _MOST_BYTES) -> tuple[int, bytes]:
        """Returns type and body of the next packet."""
        try:
            self._socket.settimeout(timeout_s)
            size = int.from_bytes(self._read(4), "big")
            if not 0 < size <= most_bytes:
                raise LostError(f"it sends a packet of {size} bytes")
            packet = p.parse_packet(self._read(size), _MOST_BYTES)
        except TimeoutError:
            raise LostError(f"no answer came within {timeout_s:g} s") from None
        except OSError as error:
            raise LostError(str(error)) from None
        except MalformedError as error:
            raise LostError(f"it sends what is no packet: {error}") from None
        return packet.type, packet.body

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._socket.recv(min(size, _RECEIVE_BYTES))
            if not part:
                raise LostError("the server closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _message(kind: type[_M], body: bytes) -> _M:
    try:
        return parsed(kind, body)
    except MalformedError as error:
        raise LostError(f"it sends what is no message: {error}") from None


def _error_of(body: bytes) -> str | None:
    """Returns the text of an ``Ack`` with an error; None if it has none."""
    ack = _message(Ack, body)
    return (ack.error_message or f"error {ack.error_code}") if ack.error_code else None


def unavailable(place: str, lost: LostError) -> PeerUnavailableError:
    """Returns the error for users when a server cannot be reached any more."""
    return PeerUnavailableError(
        f"the server did not answer: {lost}", place=place, remedy="Start it, or look at the network between the two."
    )


def refused(place: str, error: RefusedError) -> UsageError:
    """Returns the error for users when a server refuses a request."""
    return UsageError(f"the server refuses: {error}", place=place, remedy="Correct the request, or ask its operator.")

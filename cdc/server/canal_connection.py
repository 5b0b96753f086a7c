"""One connection of a client: packets in, answers out, one after the other."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, NotLeaderError, UsageError
from cdc.base.log import get_logger
from cdc.canal import packets as p
from cdc.canal.filters import table_pattern
from cdc.canal.messages import MalformedError, Messages, Packet
from cdc.canal.packets import Request, parse_packet, parse_request

if TYPE_CHECKING:
    from cdc.canal.encoder import Taken
    from cdc.server.canal_clients import Client, Clients

_LOGIN_S, _LOGIN_BYTES = 10.0, 1 << 16
_SEND_S = 60.0
"""The time that a client may take to take a part of an answer."""
_PART_BYTES = 256 * 1024
_FETCH_SIZE, _UNIT_BYTES = 1000, 1024
"""The fetch size of a client that gives none, and the bytes of entries for which each of it stands."""
_MOST_LOGINS, _WRONG_S = 3, 0.5
_POLL_S = 1.0
_MOST_IDS = 16
_log = get_logger(__name__)


class _ClosedError(Exception):
    """The client is gone, or is to be disconnected."""


@dataclass
class _Login:
    """The state of a connection."""

    seed: bytes
    is_known: bool = False
    wrong: int = 0
    idle_s: float = 0.0


class CanalConnection:
    """Speaks with one client until it goes."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        clients: Clients,
        password: str | None,
        when_known: Callable[[], object] = lambda: None,
    ) -> None:
        """``when_known`` is called when the client has logged in."""
        self._reader, self._writer = reader, writer
        self._clients, self._password, self._when_known = clients, password, when_known
        self._config = clients.config
        self._login = _Login(secrets.token_bytes(p.SEED_BYTES), idle_s=self._config.idle_s)
        # Once a part is drained, the transport must not refer to it any more: its buffer is written again.
        writer.transport.set_write_buffer_limits(0)
        self._used: dict[tuple[str, str], Client] = {}
        peer = writer.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if peer else "unknown"

    async def run(self) -> None:
        """Answers until the client goes, sends what is no packet, or is idle for too long."""
        try:
            await self._send(p.handshake(self._login.seed))
            while True:
                await self._answer(await self._packet())
        except (_ClosedError, ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            for client in self._used.values():
                self._clients.leave(client)
            if self._login.is_known:
                self._clients.logged_in -= 1
                _log.info("client gone", client=self._peer)

    async def refuse(self) -> None:
        """Sends an error instead of a handshake: there are too many clients."""
        with suppress(_ClosedError, ConnectionError, TimeoutError):
            await self._send(p.refused(p.BAD_REQUEST, self._clients.full_text))

    # --- packets

    async def _packet(self) -> Packet:
        most_s = self._login.idle_s if self._login.is_known else _LOGIN_S
        async with asyncio.timeout(most_s):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            self._confirm()
            most = self._config.max_request_bytes
            if not self._login.is_known:  # there may be many of these
                most = min(most, _LOGIN_BYTES)
            if not 0 < size <= most:
                text = f"the packet has {size} bytes; this server takes up to {most}"
                await self._send(p.refused(p.BAD_REQUEST, text))
                raise _ClosedError
            frame = await self._reader.readexactly(size)
        try:
            return parse_packet(frame, self._config.max_request_bytes)
        except MalformedError as error:
            await self._send(p.refused(p.BAD_REQUEST, f"the packet cannot be read: {error}"))
            raise _ClosedError from None

    def _confirm(self) -> None:
        """Confirms at once what was received. Canal's clients write a packet's length and the packet one after the
        other without TCP_NODELAY, so their kernel holds the packet back until the length is confirmed; ours would wait
        40 ms with that, in case it has something to send along."""
        connection = self._writer.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):  # it is closed: the next read tells
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    async def _send(self, *parts: bytes | memoryview) -> None:
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), _PART_BYTES):
                if self._writer.is_closing():
                    raise _ClosedError
                self._writer.write(view[at : at + _PART_BYTES])
                try:
                    await asyncio.wait_for(self._writer.drain(), _SEND_S)
                except TimeoutError:
                    self._writer.transport.abort()
                    raise _ClosedError from None

    @property
    def _is_gone(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    async def _answer(self, packet: Packet) -> None:
        operation, destination = _OPERATIONS.get(packet.type, "unknown"), ""
        try:
            request = parse_request(packet)
            destination = request.destination
            if packet.type == p.CLIENT_AUTHENTICATION:
                await self._authenticate(request)
            elif not self._login.is_known:
                await self._send(p.refused(p.BAD_REQUEST, "the client has to log in first"))
                raise _ClosedError
            elif packet.type in _OPERATIONS:
                await self._operate(packet, request)
            else:
                await self._send(p.refused(p.BAD_REQUEST, f"packet type={packet.type} is NOT supported!"))
            outcome = "ok"
        except MalformedError as error:
            outcome = "refused"
            await self._send(p.refused(p.BAD_REQUEST, f"the request cannot be read: {error}"))
        except NotLeaderError as error:  # a cluster client then looks for the leader
            self._clients.count(destination, operation, type(error).__name__)
            await self._send(p.refused(p.BAD_REQUEST, str(error)))
            raise _ClosedError from None
        except CdcError as error:
            outcome = type(error).__name__
            await self._send(p.refused(p.BAD_REQUEST, str(error)))
        except (_ClosedError, ConnectionError, TimeoutError):
            raise
        except Exception:  # noqa: BLE001 - the process serves others, too
            _log.exception("request failed", client=self._peer, operation=operation, destination=destination)
            outcome = "failed"
            await self._send(p.refused(p.BAD_REQUEST, "the server failed; its log says why"))
        self._clients.count(destination, operation, outcome)

    # --- requests

    async def _authenticate(self, request: Request) -> None:
        login = self._login
        right = self._password is None or (
            request.user == self._config.user and p.is_password(request.password, self._password, login.seed)
        )
        if not right:
            login.wrong += 1
            if login.is_known:
                login.is_known = False
                self._clients.logged_in -= 1
            _log.warning("login refused", client=self._peer, user=request.user[:64])
            await asyncio.sleep(_WRONG_S)
            await self._send(p.refused(p.BAD_REQUEST, f"auth failed for user:{request.user[:64]}"))
            if login.wrong >= _MOST_LOGINS:
                raise _ClosedError
            return
        if not login.is_known:
            if self._clients.is_full:  # others were faster
                await self.refuse()
                raise _ClosedError
            login.is_known = True
            self._clients.logged_in += 1
            self._when_known()
            _log.info("client logged in", client=self._peer, user=request.user[:64])
        if request.read_timeout_ms > 0:
            login.idle_s = min(self._config.idle_s, request.read_timeout_ms / 1000)
        if request.destination and request.client_id:
            await self._subscribe(request)
        await self._send(p.acknowledged())

    async def _operate(self, packet: Packet, request: Request) -> None:
        if packet.type == p.HEARTBEAT:
            await self._send(p.acknowledged())
            return
        if not request.destination or not request.client_id:
            await self._send(p.refused(p.MISSING_FIELD, "destination or clientId is null"))
            return
        if packet.type == p.SUBSCRIPTION:
            await self._subscribe(request)
            await self._send(p.acknowledged())
            return
        if packet.type == p.GET:
            await self._get(packet, request)
            return
        client = self._client(request)
        async with client.lock:
            if packet.type == p.UNSUBSCRIPTION:
                await self._clients.in_thread(client.cursor.unsubscribe)
                self._tell(_log.info, "client unsubscribed", request)
                await self._send(p.acknowledged())
            elif packet.type == p.CLIENT_ACK:
                await self._ack(client, request)
            elif await self._clients.in_thread(lambda: client.cursor.is_subscribed):
                await self._clients.in_thread(lambda: client.cursor.rollback(request.batch or None))
                self._tell(_log.debug, "cursor moved back", request, batch=request.batch or "all")

    def _client(self, request: Request) -> Client:
        client = self._clients.client(request.destination, request.client_id)
        key = (request.destination, request.client_id)
        if key not in self._used:
            if len(self._used) >= _MOST_IDS:
                raise UsageError(f"a connection is for at most {_MOST_IDS} client ids")
            self._used[key] = client
            self._clients.enter(client)
        return self._used[key]

    async def _subscribe(self, request: Request) -> None:
        pattern = table_pattern(request.filter) if request.filter else None
        client = self._client(request)
        await self._clients.begin(request.destination)

        def subscribe() -> None:
            self._clients.require_room(client, request.destination)
            client.cursor.subscribe(pattern, keep=not request.filter)

        async with client.lock:
            await self._clients.in_thread(subscribe)
        self._tell(_log.info, "client subscribed", request, filter=request.filter)

    def _tell(self, log: Callable[..., object], what: str, request: Request, **more: object) -> None:
        """Logs what a client has done, as Canal's ``meta.log`` has it."""
        log(what, client=self._peer, destination=request.destination, client_id=request.client_id, **more)

    async def _ack(self, client: Client, request: Request) -> None:
        if request.batch == 0:
            await self._send(p.refused(p.MISSING_BATCH, "batchId should assign value"))
        elif request.batch != p.NO_BATCH:
            await self._clients.in_thread(lambda: client.cursor.ack(request.batch))
            self._tell(_log.debug, "cursor moved", request, batch=request.batch)

    async def _get(self, packet: Packet, request: Request) -> None:
        client = self._client(request)
        max_bytes = (request.fetch_size if request.fetch_size > 0 else _FETCH_SIZE) * _UNIT_BYTES
        max_bytes = min(max_bytes, self._config.max_answer_bytes)
        if request.timeout_s >= 0:
            await self._wait(client, request, max_bytes)
        if self._is_gone:
            raise _ClosedError
        async with client.lock:
            client.end_preparing()
            batch = await self._clients.in_thread(lambda: client.cursor.take(max_bytes))
            if batch is None:
                await self._send(p.framed(p.MESSAGES, _NOTHING))
                return
            self._clients.require_leader(request.destination)
            await self._send_batch(batch[0], batch[1], packet.compression)
            client.cursor.give_back(batch[1])
        if sum(part.entry_bytes for part in batch[1]) > max_bytes:  # it has fallen behind, and will ask for the next
            self._clients.prepare(client, max_bytes)

    async def _send_batch(self, batch: int, parts: list[Taken], compression: int) -> None:
        if compression in (p.ZLIB, p.GZIP):
            entries = b"".join(part.data for part in parts)
            await self._send(await self._clients.in_thread(lambda: p.compressed_messages(batch, entries, compression)))
            return
        size = sum(part.size for part in parts)
        await self._send(p.messages_head(batch, size), *(part.data for part in parts))

    async def _wait(self, client: Client, request: Request, enough: int) -> None:
        """Waits until the batch would be full, or the client's time is over."""
        loop = asyncio.get_running_loop()
        deadline = None if request.timeout_s == 0 else loop.time() + request.timeout_s
        while not self._is_gone:
            version = self._clients.version(request.destination)
            async with client.lock:
                pending = await self._clients.in_thread(lambda: client.cursor.pending_bytes(enough))
            left_s = _POLL_S if deadline is None else deadline - loop.time()
            if pending >= enough or left_s <= 0:
                return
            await self._clients.wait_for_growth(request.destination, version, min(left_s, _POLL_S))


_NOTHING: bytes = Messages(batch_id=p.NO_BATCH).SerializeToString()
_OPERATIONS = {
    p.CLIENT_AUTHENTICATION: "canal-login",
    p.SUBSCRIPTION: "canal-subscribe",
    p.UNSUBSCRIPTION: "canal-unsubscribe",
    p.GET: "canal-get",
    p.CLIENT_ACK: "canal-ack",
    p.CLIENT_ROLLBACK: "canal-rollback",
    p.HEARTBEAT: "canal-heartbeat",
}

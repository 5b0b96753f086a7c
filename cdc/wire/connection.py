"""A client's connection to ``cdc server``: requests, their repetition, and the checks of each answer."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import random
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdc.base.errors import CdcError, ConfigError, NotLeaderError, PeerUnavailableError, VersionError
from cdc.base.log import get_logger
from cdc.base.run_identity import current_run
from cdc.base.version import package_version
from cdc.wire.protocol import (
    API,
    DIGEST_HEADER,
    EPOCH_HEADER,
    REPEATED_HEADER,
    RUN_HEADER,
    VERSION_HEADER,
    error_of,
)
from cdc.wire.sockets import DEAD_PEER

if TYPE_CHECKING:
    import httpx

_CONNECT_S, _ANSWER_S = 5.0, 300.0
"""The answer may take long: a get waits until its batch is staged."""
_ANSWER_OF_SEVERAL_S = 30.0
"""The answer of one of several servers: another one may lead while the one that was asked hangs."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LONGEST_PAUSE_OF_SEVERAL_S = 0.1, 5.0, 1.0
_MOST_ANSWER_BYTES = 256 * 1024 * 1024
_UNAVAILABLE = {429, 502, 503, 504}
"""Statuses without an error document by which a server or a proxy asks to come again."""
_CLIENT_HEADERS = {"accept-encoding": "identity"}
_log = get_logger(__name__)


@dataclass(frozen=True)
class Connection:
    """The way to one destination of a server, or of several of which one leads. It can be pickled, and sent to
    executors."""

    url: str
    """``https://HOST:PORT``; those of several servers are separated by commas. The first one stands for the destination
    in URIs, whichever answers."""
    destination: str
    token: str = field(repr=False)
    ca: str | None = field(default=None, repr=False)
    """The certificates (PEM) by which the server's own is verified; None: those of the system."""
    retry_for_s: float = 60.0

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of all servers."""
        return tuple(self.url.split(","))

    @property
    def place(self) -> str:
        """The destination at the first server, by which its files are named."""
        return self._place_at(self.urls[0])

    def _place_at(self, url: str) -> str:
        return f"{url}/v{API}/{quote(self.destination, safe='')}"

    def call(
        self, operation: str, arguments: dict[str, Any] | None = None, *, idempotent: bool = True, once: bool = False
    ) -> Any:
        """Calls an operation of the server, and returns its result.

        A call whose answer is lost is repeated until :attr:`retry_for_s` has passed; one that is not ``idempotent``
        only if the server did not get it; none with ``once``. Raises the server's error, PeerUnavailableError,
        VersionError, and ConfigError if the server refuses the token or cannot prove its identity.
        """
        body = json.dumps(arguments or {}).encode()
        data, _ = self._request("POST", operation, body, headers=_run_header(), idempotent=idempotent, once=once)
        try:
            return json.loads(data)["result"]
        except (ValueError, KeyError, TypeError):
            raise self._not_a_server(f"answered {operation} with something else than a result") from None

    def fetch(self, operation: str, arguments: dict[str, Any]) -> bytes:
        """Calls an operation that answers with bytes."""
        return self._request("POST", operation, json.dumps(arguments).encode(), with_digest=True)[0]

    def read(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Returns a file of the store, or the bytes from ``start`` up to ``stop``, exclusive."""
        headers = {} if start is None or stop is None else {"range": f"bytes={start}-{stop - 1}"}
        expected = None if start is None or stop is None else stop - start
        name = f"bytes/{quote(path)}"
        return self._request("GET", name, None, headers=headers, with_digest=True, expected=expected)[0]

    # --- one request, repeated

    def _request(
        self,
        method: str,
        name: str,
        body: bytes | None,
        *,
        headers: dict[str, str] | None = None,
        idempotent: bool = True,
        once: bool = False,
        with_digest: bool = False,
        expected: int | None = None,
    ) -> tuple[bytes, dict[str, str]]:
        deadline = time.monotonic() + (0.0 if once else self.retry_for_s)
        pause_s, repeated = _FIRST_PAUSE_S, False
        followed = False  # two servers that each take the other for the leader are not asked without a pause
        while True:
            asked = {**(headers or {}), **({REPEATED_HEADER: "1"} if repeated else {})}
            try:
                return self._try(method, name, body, asked, with_digest, expected)
            except NotLeaderError as error:
                is_known = self._turn_to(error.leader)
                if is_known and not followed:
                    followed = True
                    continue
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise
            except _LostError as lost:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or (lost.was_sent and not idempotent):
                    raise self._unavailable(lost, name) from lost.__cause__
                repeated = repeated or lost.was_sent
                self._turn_to(None)
                _log.debug("request repeated", place=self.place, request=name, reason=str(lost))
            time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))  # not all clients at the same moment
            pause_s, followed = min(2 * pause_s, self._longest_pause_s), False

    @property
    def _longest_pause_s(self) -> float:
        return _LONGEST_PAUSE_S if len(self.urls) == 1 else _LONGEST_PAUSE_OF_SEVERAL_S

    def _is_of_newest(self, epoch: str | None) -> bool:
        """Whether no answer of a newer leader was seen. A server may be paused between its last look and its answer."""
        if epoch is None or not epoch.isdecimal():
            return True
        key = (self.url, self.destination)
        with _known_lock:
            newest = _epochs.get(key, 0)
            _epochs[key] = max(newest, int(epoch))
        return int(epoch) >= newest

    def _turn_to(self, leader: str | None) -> bool:
        """Asks another server from now on: the leader, if it is one of those that are known, else the next one. The
        token goes to no other. Returns whether it is the leader."""
        urls = self.urls
        with _known_lock:
            at = urls.index(leader) if leader in urls else (_current.get(self.url, 0) + 1) % len(urls)
            _current[self.url] = at
        return leader in urls

    def _try(
        self,
        method: str,
        name: str,
        body: bytes | None,
        headers: dict[str, str],
        with_digest: bool,
        expected: int | None,
    ) -> tuple[bytes, dict[str, str]]:
        """Sends a request once. Raises _LostError if another try may help."""
        client = _client(self, os.getpid())  # says so if httpx is missing
        import httpx

        try:
            with client.stream(
                method,
                f"{self._place_at(self.urls[_current.get(self.url, 0)])}/{name}",
                content=body,
                headers={
                    "authorization": f"Bearer {self.token}",
                    "content-type": "application/json",
                    VERSION_HEADER: package_version(),
                    **headers,
                },
            ) as response:
                data = self._body(response)
                status, answered = response.status_code, {key.lower(): value for key, value in response.headers.items()}
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            self._require_trust(error)
            raise _LostError(str(error) or type(error).__name__, was_sent=False) from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _LostError(str(error) or type(error).__name__, was_sent=True) from error
        if status >= 300:
            raise self._refused(status, data, name)
        if not self._is_of_newest(answered.get(EPOCH_HEADER)):
            raise _LostError("the answer is that of a former leader", was_sent=True)
        if VERSION_HEADER not in answered:
            raise self._not_a_server(f"answered {name} without its version")
        if with_digest and hashlib.sha256(data).hexdigest() != answered.get(DIGEST_HEADER):
            raise _LostError("the bytes that came differ from those that were sent", was_sent=True)
        if expected is not None and len(data) != expected:
            raise _LostError(f"{len(data)} bytes came instead of {expected}", was_sent=True)
        return data, answered

    def _body(self, response: httpx.Response) -> bytes:
        """Reads an answer, which must not be without end."""
        parts, size = [], 0
        for part in response.iter_raw():
            size += len(part)
            if size > _MOST_ANSWER_BYTES:
                raise self._not_a_server(f"answered with more than {_MOST_ANSWER_BYTES} bytes")
            parts.append(part)
        return b"".join(parts)

    # --- errors

    def _refused(self, status: int, data: bytes, name: str) -> Exception:
        try:
            error = error_of(json.loads(data))
        except ValueError:
            error = None
        if error is not None:
            return error
        if status in _UNAVAILABLE or status >= 500:
            return _LostError(f"the answer was HTTP {status}", was_sent=status not in (429, 503))
        if status == 404:
            return VersionError(
                f"knows no {name} of version {API} of the protocol",
                place=self.place,
                remedy=f"Install the same towpath there ({package_version()} is here), or correct store.url.",
            )
        return self._not_a_server(f"answered {name} with HTTP {status}")

    def _not_a_server(self, what: str) -> CdcError:
        return ConfigError(
            f"is not a server of Towpath: it {what}", place=self.place, remedy="Correct store.url in the configuration."
        )

    def _unavailable(self, lost: _LostError, name: str) -> CdcError:
        return PeerUnavailableError(
            f"the server did not answer {name.partition('/')[0]}: {lost}",
            place=self.place,
            remedy="Start `cdc server` there, or look at its log and at the network between the two.",
        )

    def _require_trust(self, error: BaseException) -> None:
        """Raises ConfigError if a connection failed because of the server's certificate."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise ConfigError(
                    f"the server's certificate is not trusted: {cause.verify_message}",
                    place=self.place,
                    remedy="Set store.ca_file to the certificate of the CA that signed it, and store.url to a name in "
                    "it.",
                ) from error
            cause = cause.__cause__ or cause.__context__


class LongPoll:
    """Requests that concern several destinations of one server, and that it answers when there is something to tell.
    Used in one event loop; at most one request at a time."""

    def __init__(self, url: str, ca: str | None, operation: str) -> None:
        self._connection = Connection(url, operation, "", ca)
        self._client: httpx.AsyncClient | None = None

    async def call(self, arguments: dict[str, Any], wait_s: float) -> Any:
        """Returns the result of a request, which the server answers within ``wait_s``. Raises what
        :meth:`Connection.call` raises, without another try."""
        at, operation = self._connection, self._connection.destination
        if self._client is None:
            self._client = await asyncio.to_thread(_async_client, at)
        import httpx

        try:
            response = await self._client.post(
                at.place,
                content=json.dumps(arguments).encode(),
                headers={"content-type": "application/json", VERSION_HEADER: package_version()},
                timeout=httpx.Timeout(_CONNECT_S, read=wait_s + _ANSWER_OF_SEVERAL_S),
            )
        except httpx.TransportError as error:
            at._require_trust(error)
            raise at._unavailable(_LostError(str(error) or type(error).__name__, was_sent=True), operation) from error
        if response.status_code >= 300:
            refused = at._refused(response.status_code, response.content, operation)
            raise at._unavailable(refused, operation) if isinstance(refused, _LostError) else refused
        try:
            return response.json()["result"]
        except (ValueError, KeyError, TypeError):
            raise at._not_a_server(f"answered {operation} with something else than a result") from None

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()


def _run_header() -> dict[str, str]:
    run = current_run()
    return {} if run is None else {RUN_HEADER: json.dumps(run.document)}


class _LostError(Exception):
    """No usable answer came; another try may bring one."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        """Whether the server may have got the request."""


@functools.lru_cache(maxsize=64)
def _client(connection: Connection, _pid: int) -> httpx.Client:
    """Returns the HTTP client of a connection in this process. A forked process must not use its parent's sockets."""
    options = _transport_options(connection)  # says so if httpx is missing
    import httpx

    return httpx.Client(
        transport=httpx.HTTPTransport(**options),
        timeout=httpx.Timeout(_ANSWER_S if len(connection.urls) == 1 else _ANSWER_OF_SEVERAL_S, connect=_CONNECT_S),
        headers=_CLIENT_HEADERS,
    )


def _async_client(connection: Connection) -> httpx.AsyncClient:
    options = _transport_options(connection)
    import httpx

    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(**options), headers=_CLIENT_HEADERS)


def _transport_options(connection: Connection) -> dict[str, Any]:
    """Returns the options of a transport. Raises ConfigError."""
    try:
        import httpx
    except ModuleNotFoundError:
        raise ConfigError(
            "the package httpx is not installed", place="store.kind: server", remedy="Install towpath[server]."
        ) from None
    try:
        context = ssl.create_default_context(cadata=connection.ca)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"holds no certificates: {error}", place="store.ca_file", remedy="Give it a file in PEM format."
        ) from None
    # Neither proxies nor .netrc of the environment: the token goes to the configured server alone.
    return {
        "verify": context,
        "trust_env": False,
        "limits": httpx.Limits(max_connections=32, keepalive_expiry=15),
        "socket_options": DEAD_PEER,
    }


# --- connections of this process

_current: dict[str, int] = {}
"""The server that is asked first, by the addresses of all."""
_epochs: dict[tuple[str, str], int] = {}
"""The newest leadership epoch that was seen, by the addresses of all servers and the destination."""
_known: dict[str, Connection] = {}
_known_lock = threading.Lock()


def remember(connection: Connection) -> Connection:
    """Makes a connection known to this process, for the files that URIs of this destination name."""
    with _known_lock:
        _known[connection.place] = connection
    return connection


def known() -> tuple[Connection, ...]:
    """Returns the connections that this process knows, for another process that reads the same files."""
    with _known_lock:
        return tuple(_known.values())


def known_at(place: str) -> Connection:
    """Returns the connection to a destination at a server. Raises ConfigError."""
    with _known_lock:
        connection = _known.get(place)
    if connection is None:
        raise ConfigError(
            "this process has no token for this server",
            place=place,
            remedy="Read the file through the configuration whose store.url names the server.",
        )
    return connection

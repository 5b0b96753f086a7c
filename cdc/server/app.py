"""Answers HTTP requests: who may ask, what is asked, and errors as documents. All file work is done in threads."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from cdc import __version__
from cdc.base.errors import (
    CdcError,
    ConfigError,
    NotLeaderError,
    RetryableError,
    StoreIncompleteError,
    UsageError,
    VersionError,
)
from cdc.base.log import get_logger
from cdc.base.run_identity import RunIdentity, working_for
from cdc.base.validation import first_fault
from cdc.server.answers import Refused, binary, body_of, document, of_error, text
from cdc.server.changes import ChangesRequest, StoreWatch
from cdc.server.destinations import ServedDestination, ServerCounters
from cdc.server.files import read_bytes, served_path
from cdc.server.live import LiveDestinations
from cdc.server.metrics import metrics_text
from cdc.server.operations import OPERATIONS, Get, OperationCall
from cdc.wire.protocol import (
    API,
    EPOCH_HEADER,
    LONGEST_WAIT_S,
    MOST_BODY_BYTES,
    REPEATED_HEADER,
    RUN_HEADER,
    error_document,
)

if TYPE_CHECKING:
    from cdc.server.operators import Operators
    from cdc.server.page import AdminPage
    from cdc.watch.metrics.families import AlarmCounts

_THREADS, _BYTE_THREADS, _HEALTH_THREADS = 24, 8, 2
_MOST_OF_SUBSCRIBER, _THREADS_OF_SUBSCRIBER = 100, 6
"""The requests of one subscriber that are worked on at once, and the threads that they may have."""
_HEALTH_S = 0.1
"""The time for which an answer about health is used again."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_EXPIRY_S = 1.0
_MOVES = {
    "subscribe": "subscribed",
    "unsubscribe": "unsubscribed",
    "ack": "cursor moved",
    "rollback": "cursor moved back",
}
"""The operations that move a subscriber's cursor, and what the log says of them."""
_CHANGES_PAUSE_S = 0.25
"""The pause between two looks at the stores that a client watches."""
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
_T = TypeVar("_T")
_Subscriber = tuple[str, str]
"""Destination and subscriber."""
_log = get_logger(__name__)


class ServerApp:
    """The answers of one process. ``stopping``: whether waiting requests should end."""

    def __init__(
        self,
        live: LiveDestinations,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._live = live
        self._stopping = stopping
        self.operators: Operators | None = None
        self.page: AdminPage | None = None
        self.alarms: Callable[[], Mapping[str, AlarmCounts]] = dict
        """The routes of instances, and what is wrong with those that are not open. Set before :meth:`application`."""
        self.counters = ServerCounters()
        self._threads, self._byte_threads = CapacityLimiter(_THREADS), CapacityLimiter(_BYTE_THREADS)
        self._health_threads = CapacityLimiter(_HEALTH_THREADS)
        self._watch, self._watch_threads = StoreWatch(), CapacityLimiter(1)
        self._running: Counter[_Subscriber] = Counter()
        self._threads_of: dict[_Subscriber, CapacityLimiter] = {}
        self._health_answer: tuple[float, str, int] | None = None
        self._health_lock = asyncio.Lock()

    def application(self) -> Starlette:
        """Returns the ASGI application."""
        return Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                *([] if self.operators is None else self.operators.routes()),
                *([] if self.page is None else self.page.routes()),
                Route("/v{api:int}/changes", self._changes, methods=["POST"]),
                Route("/v{api:int}/{destination}/bytes/{path:path}", self._read, methods=["GET"]),
                Route("/v{api:int}/{destination}/{operation}", self._call, methods=["POST"]),
            ]
        )

    async def expire_locks(self) -> None:
        """Releases, until it is cancelled, the locks that clients do not renew."""
        while True:
            await asyncio.sleep(_EXPIRY_S)
            for served in self._live:
                if len(served.locks):
                    await to_thread.run_sync(served.locks.expire, limiter=self._health_threads)

    # --- requests

    async def _call(self, request: Request) -> Response:
        name = request.path_params["operation"]
        return await self._answered(
            request, name if name in OPERATIONS else "unknown", partial(self._for_subscriber, self._operate)
        )

    async def _read(self, request: Request) -> Response:
        return await self._answered(request, "bytes", partial(self._for_subscriber, self._range))

    async def _changes(self, request: Request) -> Response:
        return await self._answered(request, "changes", self._wait_for_changes)

    async def _for_subscriber(
        self, work: Callable[[Request, ServedDestination, str], Awaitable[Response]], request: Request
    ) -> Response:
        """Answers a request for one destination, after a check of who asks."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        served, subscriber = self._admit(
            request.path_params["destination"], token.strip() if kind.lower() == "bearer" else None, request.url.path
        )
        request.state.destination = served.name
        epoch = served.require_leader()
        with self._worked_on((served.name, subscriber)):
            answer = await work(request, served, subscriber)
        if served.require_leader() != epoch:
            raise NotLeaderError("the leadership has changed meanwhile", place=served.name, remedy="Ask again.")
        if epoch:
            answer.headers[EPOCH_HEADER] = str(epoch)
        return answer

    async def _answered(
        self, request: Request, operation: str, work: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Turns errors into documents, and counts."""
        try:
            _require_version(request)
            answer, outcome = await work(request), "ok"
        except Refused as refused:
            answer, outcome = refused.answer(), "refused"
        except CdcError as error:
            answer, outcome = of_error(error), type(error).__name__
        except ClientDisconnect:
            answer, outcome = text("", HTTPStatus.BAD_REQUEST), "disconnected"
        except Exception:  # noqa: BLE001 - the process serves others, too
            _log.exception("request failed", destination=_destination_of(request), operation=operation)
            failed = RetryableError(
                "the server failed", place=_destination_of(request) or None, remedy="Its log says why; try again."
            )
            answer, outcome = document(error_document(failed), HTTPStatus.INTERNAL_SERVER_ERROR), "failed"
        self.counters.count(_destination_of(request), operation, outcome)
        return answer

    @contextmanager
    def _worked_on(self, subscriber: _Subscriber) -> Iterator[None]:
        """A context for a request of a subscriber. Raises Refused if too many of the same one are worked on."""
        if self._running[subscriber] >= _MOST_OF_SUBSCRIBER:
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                RetryableError(
                    f"subscriber {subscriber[1]} has {_MOST_OF_SUBSCRIBER} requests already",
                    place=subscriber[0],
                    remedy="Wait for the answers of earlier ones.",
                ),
            )
        self._running[subscriber] += 1
        try:
            yield
        finally:
            self._running[subscriber] -= 1
            if not self._running[subscriber]:
                del self._running[subscriber]
                self._threads_of.pop(subscriber, None)

    def _admit(self, name: str, token: str | None, place: str) -> tuple[ServedDestination, str]:
        """Returns a destination, and the subscriber whose token the client has. Raises Refused, and the error of a
        destination that is suspended."""
        suspended = self._live.suspended(name)
        served = self._live.get(name) if suspended is None else suspended[0]
        subscriber = None if served is None or token is None else served.subscriber_of(token)
        if served is None or subscriber is None:  # the same answer: names are not to be guessed
            raise Refused(
                HTTPStatus.UNAUTHORIZED,
                ConfigError(
                    "the server does not serve this destination to the token that it was given",
                    place=place,
                    remedy="Compare the token of store.token_env or store.token_file with server.tokens there, and the "
                    "name of the configuration file with that there.",
                ),
            )
        if suspended is not None:
            raise suspended[1].with_traceback(None)
        return served, subscriber

    async def _operate(self, request: Request, served: ServedDestination, subscriber: str) -> Response:
        name = request.path_params["operation"]
        operation = OPERATIONS.get(name)
        if operation is None:
            raise Refused(
                HTTPStatus.NOT_FOUND,
                VersionError(
                    f"the server has no operation {name!r}", remedy=f"Install towpath {__version__} on both sides."
                ),
            )
        try:
            arguments = operation.arguments.model_validate_json(await body_of(request, MOST_BODY_BYTES))
        except ValidationError as error:
            raise UsageError(first_fault(error, whole="the body"), place=name) from None
        if arguments.subscriber not in (None, subscriber):
            raise UsageError(
                f"the token belongs to subscriber {subscriber}, not to {arguments.subscriber}",
                place=served.name,
                remedy=f"Use the token of {arguments.subscriber}; server.tokens names it where the server runs.",
            )
        if operation.subscribes and served.begin is not None:
            await served.begin()
        call = OperationCall(served, subscriber, arguments, is_repeated=request.headers.get(REPEATED_HEADER) == "1")
        run = partial(operation.run, call)
        asking = (served.name, subscriber)
        with working_for(_run_of(request)):
            result = await (
                self._wait(request, arguments, asking, run)
                if isinstance(arguments, Get)
                else self._in_thread(asking, run)
            )
        if name in _MOVES:
            log = _log.info if name in ("subscribe", "unsubscribe") else _log.debug
            log(_MOVES[name], destination=served.name, subscriber=subscriber, batch=getattr(arguments, "batch", None))
        return binary(result) if isinstance(result, bytes) else document({"result": result})

    async def _wait(self, request: Request, arguments: Get, asking: _Subscriber, run: Callable[[], Any]) -> Any:
        """Asks for a batch until there is one, or the client does not want to wait any more."""
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + min(arguments.wait_s, LONGEST_WAIT_S), _FIRST_PAUSE_S
        while True:
            left_s = deadline - loop.time()
            is_last = left_s <= 0 or self._stopping()
            try:
                result = await self._in_thread(asking, run)
                if result is not None or arguments.until is not None:
                    return result
            except StoreIncompleteError:
                if is_last:
                    raise
            if is_last or await request.is_disconnected():
                return None
            await asyncio.sleep(min(pause_s, max(left_s, 0.0)))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _wait_for_changes(self, request: Request) -> Response:
        """Waits until one of several destinations has changes for a subscriber, for a client that watches them all."""
        body = await body_of(request, MOST_BODY_BYTES)
        try:
            arguments = ChangesRequest.model_validate_json(body)
        except ValidationError as error:
            raise UsageError(first_fault(error, whole="the body"), place="changes") from None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(arguments.wait_s, LONGEST_WAIT_S)
        while True:
            faults: dict[str, CdcError] = {}
            admitted = []
            for name, watched in arguments.destinations.items():
                try:
                    served, subscriber = self._admit(name, watched.token, f"{request.url.path}: {name}")
                    served.require_leader()
                    admitted.append((served, subscriber, watched.after_seq))
                except Refused as refused:
                    faults[name] = refused.error
                except CdcError:  # another server has it, or it is stopped and may be started again
                    continue
            waiting, unreadable = await to_thread.run_sync(self._watch.look, admitted, limiter=self._watch_threads)
            faults |= unreadable
            is_last = loop.time() >= deadline or self._stopping()
            if waiting or faults or is_last or await request.is_disconnected():
                documents = {name: error_document(error) for name, error in faults.items()}
                return document({"result": {"waiting": waiting, "faults": documents}})
            await asyncio.sleep(_CHANGES_PAUSE_S)

    async def _range(self, request: Request, served: ServedDestination, subscriber: str) -> Response:
        path = served_path(served.config.store.path, request.path_params["path"])
        start = stop = None
        asked = request.headers.get("range")
        if asked is not None:
            match = _RANGE.fullmatch(asked.strip())
            if match is None:
                raise UsageError(f"the range {asked!r} is not like bytes=0-99", place=request.path_params["path"])
            start, stop = int(match[1]), int(match[2]) + 1
        read = partial(read_bytes, path, start, stop)
        data = await self._in_thread((served.name, subscriber), read, self._byte_threads)
        self.counters.add_bytes(served.name, len(data))
        answer = binary(data, HTTPStatus.OK if start is None else HTTPStatus.PARTIAL_CONTENT)
        if start is not None and stop is not None:
            answer.headers["content-range"] = f"bytes {start}-{stop - 1}/*"
        return answer

    async def _in_thread(
        self, subscriber: _Subscriber, run: Callable[[], _T], threads: CapacityLimiter | None = None
    ) -> _T:
        async with self._threads_of.setdefault(subscriber, CapacityLimiter(_THREADS_OF_SUBSCRIBER)):
            return await to_thread.run_sync(run, limiter=threads or self._threads)

    # --- for operators

    async def _health(self, _request: Request) -> Response:
        """200 as long as the process serves something, with a line for each destination that has a fault."""
        async with self._health_lock:
            now = asyncio.get_running_loop().time()
            if self._health_answer is None or now - self._health_answer[0] > _HEALTH_S:
                self._health_answer = (now, *await self._examine())
        return text(*self._health_answer[1:])

    async def _examine(self) -> tuple[str, int]:
        faults: dict[str, str] = {} if self.operators is None else self.operators.faults()
        for served in self._live:
            fault = await to_thread.run_sync(_fault_of, served, limiter=self._health_threads)
            if fault is not None:
                faults.setdefault(served.name, fault)
        serving = [name for name in self._live.names() if name not in faults]
        lines = [f"{name}: {fault}\n" for name, fault in sorted(faults.items())]
        if self._stopping():
            return "".join([*lines, "the server is stopping\n"]), HTTPStatus.SERVICE_UNAVAILABLE
        if serving:
            return "".join([f"serving {', '.join(serving)}\n", *lines]), HTTPStatus.OK
        if not faults:
            return "serving nothing now: each destination is stopped, or another server has it\n", HTTPStatus.OK
        return "".join(lines), HTTPStatus.SERVICE_UNAVAILABLE

    async def _metrics(self, _request: Request) -> Response:
        held = {served.name: len(served.locks) for served in self._live}
        states = {} if self.operators is None else self.operators.states()
        make = partial(metrics_text, self.counters, held, states, self.alarms())
        return text(await to_thread.run_sync(make, limiter=self._health_threads))


def _run_of(request: Request) -> RunIdentity | None:
    """Returns who sends a request; None if it does not say so in a way that this server understands."""
    try:
        return RunIdentity.model_validate_json(request.headers.get(RUN_HEADER, ""))
    except ValueError:
        return None


def _destination_of(request: Request) -> str:
    """Returns the destination that an admitted request is for; empty for others."""
    return getattr(request.state, "destination", "")


def _require_version(request: Request) -> None:
    """Raises Refused if the client speaks another version of the protocol."""
    if request.path_params["api"] != API:
        raise Refused(
            HTTPStatus.NOT_FOUND,
            VersionError(
                f"the client speaks version {request.path_params['api']} of the protocol, and this server version "
                f"{API}",
                remedy=f"Install the same towpath on both; the server has {__version__}.",
            ),
        )


def _fault_of(served: ServedDestination) -> str | None:
    """Returns what keeps a destination from being served; None if nothing does."""
    try:
        served.meta.read()
        if served.reader().exists() or served.begin is not None:
            return None
        return f"there is no store yet in {served.reader().place}"
    except CdcError as error:
        return str(error)

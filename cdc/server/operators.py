"""The routes of HTTP by which people and programs see the instances of a server, and act on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from cdc.base.errors import CdcError, RetryableError, UsageError
from cdc.base.log import get_logger
from cdc.base.units import iso_time
from cdc.server.answers import Refused, document, of_error
from cdc.server.processes import MOST_LINES
from cdc.server.roles import Role, Roles
from cdc.wire.protocol import API, error_document

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from cdc.server.destinations import ServerCounters
    from cdc.server.instance import Instance
    from cdc.server.instances import Instances
    from cdc.server.metrics import InstanceNumbers

_PATH = f"/v{API}/instances"
_LINES = 100
_log = get_logger(__name__)


class Operators:
    """The routes of instances. A page adds its own with :attr:`roles` and :attr:`instances`."""

    def __init__(self, instances: Instances, roles: Roles, counters: ServerCounters) -> None:
        self.instances, self.roles = instances, roles
        self._counters = counters

    def routes(self) -> list[Route]:
        """Returns the routes."""
        acts = {"start": _start, "stop": _stop, "restart": _restart}
        return [
            self._route(_PATH, "GET", Role.VIEWER, "instances", self._list),
            self._route(f"{_PATH}/reload", "POST", Role.OPERATOR, "instance-reload", self._reload),
            self._route(f"{_PATH}/{{destination}}", "GET", Role.VIEWER, "instance", self._instance),
            self._route(f"{_PATH}/{{destination}}/logs", "GET", Role.VIEWER, "instance-logs", self._logs),
            *(
                self._route(
                    f"{_PATH}/{{destination}}/{name}", "POST", Role.OPERATOR, f"instance-{name}", self._acting(act)
                )
                for name, act in acts.items()
            ),
        ]

    def faults(self) -> dict[str, str]:
        """Returns what is wrong with instances, by name, for ``/health``."""
        return self.instances.faults()

    def states(self) -> Mapping[str, InstanceNumbers]:
        """Returns the states of instances, by name, for ``/metrics``."""
        return self.instances.states()

    def _route(
        self, path: str, method: str, role: Role, operation: str, work: Callable[[Request], Awaitable[Any]]
    ) -> Route:
        async def answer(request: Request) -> Response:
            try:
                self.roles.require(request, role)
                response: Response = document(await work(request))
                outcome = "ok"
            except Refused as refused:
                response, outcome = refused.answer(), "refused"
            except CdcError as error:
                response, outcome = of_error(error), type(error).__name__
            except Exception:  # noqa: BLE001 - the process serves others, too
                _log.exception("request failed", operation=operation)
                failed = RetryableError("the server failed", remedy="Its log says why; try again.")
                response = document(error_document(failed), HTTPStatus.INTERNAL_SERVER_ERROR)
                outcome = "failed"
            self._counters.count("", operation, outcome)
            return response

        return Route(path, answer, methods=[method])

    # --- what is asked

    async def _list(self, _request: Request) -> dict[str, Any]:
        return {"instances": self.instances.documents()}

    async def _instance(self, request: Request) -> dict[str, Any]:
        name = request.path_params["destination"]
        document = self._or_not_found(name, lambda: self.instances.document(name))
        document["subscriptions"] = await self._subscriptions(name)
        return {"instance": document}

    async def _subscriptions(self, name: str) -> list[str] | None:
        try:
            return await self.instances.get(name).subscriptions()
        except CdcError:  # the document says what is wrong
            return None

    async def _logs(self, request: Request) -> dict[str, Any]:
        name, line_count = request.path_params["destination"], request.query_params.get("lines", str(_LINES))
        if not line_count.isascii() or not line_count.isdigit() or not 1 <= int(line_count) <= MOST_LINES:
            raise UsageError(
                f"lines: {line_count[:20]!r} is not a number from 1 to {MOST_LINES}", place=request.url.path
            )
        log = self._or_not_found(name, lambda: self.instances.log(name))
        lines = [{"time": iso_time(line.time), "text": line.text} for line in log.last(int(line_count))]
        return {"destination": name, "lines": lines}

    def _or_not_found(self, name: str, find: Callable[[], Any]) -> Any:
        try:
            return find()
        except UsageError as error:
            raise Refused(HTTPStatus.NOT_FOUND, error) from None

    # --- what is done

    def _acting(self, act: Callable[[Instance], Awaitable[None]]) -> Callable[[Request], Awaitable[dict[str, Any]]]:
        async def work(request: Request) -> dict[str, Any]:
            name = request.path_params["destination"]
            instance = self._or_not_found(name, lambda: self.instances.get(name))
            await act(instance)
            return {"instance": instance.document()}

        return work

    async def _reload(self, request: Request) -> dict[str, Any]:
        await self.instances.scan(at_once=True)
        return await self._list(request)


async def _start(instance: Instance) -> None:
    await instance.start()


async def _stop(instance: Instance) -> None:
    await instance.stop()


async def _restart(instance: Instance) -> None:
    await instance.restart()

"""The page of a server, for people: instances with their state, and buttons for operators.

It shows what :mod:`cdc.watch.status` collects and the instances say, and does what ``POST /v1/instances/…`` does. It
works without scripts. Who is no viewer gets the form for a token, and learns nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

from anyio import CapacityLimiter, to_thread
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cdc.base.errors import CdcError, ConfigError, RetryableError, UsageError
from cdc.base.log import get_logger, hide_password
from cdc.server.answers import BoundedAnswer, Refused, body_of
from cdc.server.roles import Role
from cdc.server.sessions import COOKIE, LASTS_S, LoginLimit, LoginSession, LoginSessions
from cdc.watch.page.admin import Viewer, instance_page, login_page, message_page, overview_page
from cdc.watch.page.board import Board, BoardRow
from cdc.watch.page.render import REFRESH_S

if TYPE_CHECKING:
    from starlette.requests import Request

    from cdc.server.operators import Operators

_THREADS = 4
_LINES = 100
_MOST_FORM_BYTES = 4096
_ACTS = ("start", "stop", "restart")
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}
_log = get_logger(__name__)


class AdminPage:
    """The routes of the page. ``is_secure``: whether the server speaks TLS."""

    def __init__(self, operators: Operators, *, is_secure: bool, board: Board | None = None) -> None:
        self._operators, self._is_secure = operators, is_secure
        self._board = board or Board()
        self._sessions, self._limit = LoginSessions(), LoginLimit()
        self._threads = CapacityLimiter(_THREADS)

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            self._route("/", "GET", self._overview),
            self._route("/login", "GET", self._ask),
            self._route("/login", "POST", self._login),
            self._route("/logout", "POST", self._logout),
            self._route("/reload", "POST", self._reload),
            self._route("/instances/{destination}", "GET", self._instance),
            self._route("/instances/{destination}/{act}", "POST", self._act),
        ]

    def _route(self, path: str, method: str, work: Callable[[Request], Awaitable[Response]]) -> Route:
        async def answer(request: Request) -> Response:
            try:
                if method == "POST":
                    _require_own_page(request)
                return await work(request)
            except _LoginNeeded:
                return RedirectResponse("/login", HTTPStatus.SEE_OTHER, {"cache-control": "no-store"})
            except Refused as refused:
                return self._message(request, str(refused.error), refused.status)
            except CdcError as error:
                return self._message(request, hide_password(str(error)), HTTPStatus.CONFLICT)
            except Exception:  # noqa: BLE001 - the process serves others, too
                _log.exception("page failed", path=path)
                return self._message(request, "The server failed; its log says why.", HTTPStatus.INTERNAL_SERVER_ERROR)

        return Route(path, answer, methods=[method])

    # --- who asks

    def _viewer(self, request: Request) -> Viewer:
        """Returns who asks. Raises _LoginNeeded, and Refused if nobody could log in."""
        session = self._session(request)
        if session is not None:
            is_operator = session.role >= Role.OPERATOR
            return Viewer(is_operator, True, self._sessions.form_token(session))
        role = self._operators.roles.role_of(request)
        if role >= Role.VIEWER:
            return Viewer(False, False, "")
        if self._operators.roles.are_configured:
            raise _LoginNeeded
        raise Refused(
            HTTPStatus.NOT_FOUND,
            ConfigError(
                "this page is for programs on the server's own machine",
                remedy="To see it from elsewhere, give server.roles a token for viewers or operators.",
            ),
        )

    def _session(self, request: Request) -> LoginSession | None:
        return self._sessions.read(request.cookies.get(COOKIE))

    async def _operator(self, request: Request) -> None:
        """Checks that an operator has sent a form of this page. Raises _LoginNeeded, Refused."""
        session = self._session(request)
        if session is None:
            raise _LoginNeeded
        if session.role < Role.OPERATOR:
            raise Refused(HTTPStatus.FORBIDDEN, UsageError("a viewer may not act", remedy="Log in as an operator."))
        await self._require_form(request, session)

    async def _require_form(self, request: Request, session: LoginSession) -> None:
        form = await _form(request)
        if not self._sessions.is_form_token(session, form.get("form", "")):
            raise Refused(
                HTTPStatus.FORBIDDEN, UsageError("the form is not one of this login", remedy="Load the page again.")
            )

    # --- login

    async def _ask(self, request: Request) -> Response:
        if not self._operators.roles.are_configured:
            self._viewer(request)  # refused, or a viewer without a login
            return RedirectResponse("/", HTTPStatus.SEE_OTHER)
        return self._page(lambda nonce: login_page(nonce))

    async def _login(self, request: Request) -> Response:
        address = "" if request.client is None else request.client.host
        wait_s = self._limit.wait_s(address)
        if wait_s > 0:
            text = f"Too many wrong tokens. Try again in {wait_s:.0f} seconds."
            page = self._page(lambda nonce: login_page(nonce, text), HTTPStatus.TOO_MANY_REQUESTS)
            page.headers["retry-after"] = str(int(wait_s) + 1)
            return page
        with self._limit.attempt(address) as may_try:
            if not may_try:
                raise Refused(HTTPStatus.TOO_MANY_REQUESTS, RetryableError("too many logins of this address are open"))
            token = (await _form(request)).get("token", "").strip()
        role = self._operators.roles.role_of_token(token)
        if role is Role.NOBODY:
            self._limit.wrong(address)
            _log.warning("wrong token at the page", client=address)
            wrong = "This token is none of this server's roles."
            return self._page(lambda nonce: login_page(nonce, wrong), HTTPStatus.UNAUTHORIZED)
        _log.info("login at the page", client=address, role=role.name.lower())
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER, {"cache-control": "no-store"})
        answer.set_cookie(
            COOKIE,
            self._sessions.cookie(role),
            max_age=LASTS_S,
            secure=self._is_secure,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        session = self._session(request)
        if session is not None:
            await self._require_form(request, session)
        answer = RedirectResponse("/login", HTTPStatus.SEE_OTHER, {"cache-control": "no-store"})
        answer.delete_cookie(COOKIE, secure=self._is_secure, httponly=True, samesite="strict")
        return answer

    # --- what is shown

    async def _overview(self, request: Request) -> Response:
        viewer = self._viewer(request)
        documents = self._operators.instances.documents()
        rows = await self._rows([document["destination"] for document in documents])
        return self._page(lambda nonce: overview_page(documents, rows, viewer, nonce), refreshes=True)

    async def _instance(self, request: Request) -> Response:
        viewer = self._viewer(request)
        name = request.path_params["destination"]
        document = self._or_not_found(name, lambda: self._operators.instances.document(name))
        (row,) = await self._rows([name], batches=True)
        lines = self._operators.instances.log(name).last(_LINES)
        return self._page(lambda nonce: instance_page(document, row, lines, viewer, nonce), refreshes=True)

    async def _rows(self, names: list[str], *, batches: bool = False) -> list[BoardRow]:
        """Returns the status of instances; the board waits for none longer than its limit."""
        folder = self._operators.instances.folder
        files = [folder / f"{name}.yaml" for name in names]
        return await to_thread.run_sync(lambda: self._board.rows(files, batches=batches), limiter=self._threads)

    def _or_not_found(self, name: str, find: Callable[[], Any]) -> Any:
        try:
            return find()
        except UsageError as error:
            raise Refused(HTTPStatus.NOT_FOUND, error) from None

    # --- what is done

    async def _act(self, request: Request) -> Response:
        await self._operator(request)
        name, act = request.path_params["destination"], request.path_params["act"]
        if act not in _ACTS:
            raise Refused(HTTPStatus.NOT_FOUND, UsageError(f"there is no action {act!r}"))
        instance = self._or_not_found(name, lambda: self._operators.instances.get(name))
        await {"start": instance.start, "stop": instance.stop, "restart": instance.restart}[act]()
        _log.info("done at the page", destination=name, action=act)
        return RedirectResponse(f"/instances/{quote(name, safe='')}", HTTPStatus.SEE_OTHER)

    async def _reload(self, request: Request) -> Response:
        await self._operator(request)
        await self._operators.instances.scan(at_once=True)
        _log.info("done at the page", action="reload")
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)

    # --- answers

    def _page(self, make: Callable[[str], str], status: int = HTTPStatus.OK, *, refreshes: bool = False) -> Response:
        nonce = secrets.token_urlsafe(16)
        headers = {name: value.replace("{nonce}", nonce) for name, value in _HEADERS.items()}
        answer = BoundedAnswer(make(nonce).encode(), status, "text/html; charset=utf-8")
        answer.headers.update(headers)
        if refreshes:
            answer.headers["refresh"] = REFRESH_S
        return answer

    def _message(self, _request: Request, text: str, status: int) -> Response:
        return self._page(lambda nonce: message_page(HTTPStatus(status).phrase, text, nonce), status)


class _LoginNeeded(Exception):
    """Raised when a request comes without a login that the page needs."""


def _require_own_page(request: Request) -> None:
    """Refuses a form that the page of another server has sent, as browsers say in ``Origin``. Raises Refused."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Refused(HTTPStatus.FORBIDDEN, UsageError("the form is one of another server's page"))


async def _form(request: Request) -> dict[str, str]:
    """Returns the fields of a form. Raises Refused if it is too large, or does not come."""
    text = (await body_of(request, _MOST_FORM_BYTES)).decode("utf-8", "replace")
    try:
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=10).items()}
    except ValueError:
        return {}

"""The instances of a server, over HTTP: what ``cdc instance`` asks and does."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdc.base.errors import ConfigError, PeerUnavailableError
from cdc.wire.protocol import API, VERSION_HEADER, error_of

if TYPE_CHECKING:
    import httpx

_ANSWER_S, _CONNECT_S = 120.0, 5.0
"""Stopping an instance waits for its capture."""


@dataclass(frozen=True)
class ServerInstances:
    """The instances of one server."""

    url: str
    token: str | None = field(default=None, repr=False)
    """The token of a role; None: what a server shows without one."""
    ca: str | None = field(default=None, repr=False)
    """The certificates (PEM) by which the server's own is verified; None: those of the system."""

    def documents(self) -> list[dict[str, Any]]:
        """Returns the documents of all instances. Raises PeerUnavailableError, ConfigError, and the server's error."""
        documents: list[dict[str, Any]] = self._ask("GET", "")["instances"]
        return documents

    def get(self, name: str) -> dict[str, Any]:
        """Returns the document of one, with its subscriptions."""
        document: dict[str, Any] = self._ask("GET", f"/{quote(name, safe='')}")["instance"]
        return document

    def act(self, name: str, action: str) -> dict[str, Any]:
        """Starts, stops or restarts one (``start``, ``stop``, ``restart``), and returns its document."""
        document: dict[str, Any] = self._ask("POST", f"/{quote(name, safe='')}/{action}")["instance"]
        return document

    def reload(self) -> list[dict[str, Any]]:
        """Lets the server read its configurations and tokens again, and returns the documents of all."""
        documents: list[dict[str, Any]] = self._ask("POST", "/reload")["instances"]
        return documents

    def logs(self, name: str, lines: int) -> list[dict[str, str]]:
        """Returns the last lines of the log of an instance's captures: ``time`` and ``text`` of each."""
        lines_of_log: list[dict[str, str]] = self._ask("GET", f"/{quote(name, safe='')}/logs?lines={lines}")["lines"]
        return lines_of_log

    def _ask(self, method: str, path: str) -> dict[str, Any]:
        import_httpx()
        import httpx

        url = f"{self.url.rstrip('/')}/v{API}/instances{path}"
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
        try:
            with httpx.Client(verify=_context(self.ca), trust_env=False, timeout=timeout) as client:
                answer = client.request(method, url, headers=headers)
        except httpx.TransportError as error:
            raise PeerUnavailableError(
                f"the server did not answer: {error}",
                place=self.url,
                remedy="Start `cdc server` there, or correct --url; --ca-file names the CA of its certificate.",
            ) from None
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            document = json.loads(answer.content)
        except ValueError:
            document = None
        error = error_of(document)
        if error is not None:
            raise error
        if answer.status_code != 200 or VERSION_HEADER not in answer.headers or not isinstance(document, dict):
            raise ConfigError(
                f"is not a server of Towpath: it answered HTTP {answer.status_code}",
                place=self.url,
                remedy="Correct --url.",
            )
        return document


def import_httpx() -> None:
    """Raises ConfigError if httpx is not installed."""
    try:
        import httpx  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(
            "the package httpx is not installed", place="cdc instance", remedy="Install towpath[server]."
        ) from None


def _context(ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=ca)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"holds no certificates: {error}", place="--ca-file", remedy="Give it a file in PEM format."
        ) from None

"""Roles: the right to see the instances of a server, and the right to act on them.

A *viewer* reads, an *operator* acts as well. Each has a token (``server.roles``). A server without such tokens shows
its instances to programs on its own machine only, and lets nobody act. Routes call :meth:`Roles.require` first.
"""

from __future__ import annotations

import hmac
from enum import IntEnum
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING

from cdc.base.addresses import is_loopback
from cdc.base.errors import ConfigError, UsageError
from cdc.config.secrets import role_token
from cdc.server.answers import Refused

if TYPE_CHECKING:
    from starlette.requests import Request

    from cdc.config.server import RolesConfig

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of a proxy: the request may come from another machine."""


class Role(IntEnum):
    """The rights of a token. A higher role includes the lower ones."""

    NOBODY = 0
    VIEWER = 1
    OPERATOR = 2


class Roles:
    """The roles of one server."""

    def __init__(self, config: RolesConfig) -> None:
        """Reads the tokens. Raises ConfigError if one is missing, or both are the same."""
        self._digests: dict[Role, bytes] = {}
        for role, token in ((Role.VIEWER, config.viewer), (Role.OPERATOR, config.operator)):
            if token is not None:
                self._digests[role] = sha256(role_token(role.name.lower(), token).encode()).digest()
        if len(set(self._digests.values())) < len(self._digests):
            raise ConfigError(
                "viewer and operator have the same token",
                place="server.roles",
                remedy="Make one for each with: openssl rand -hex 32.",
            )

    @property
    def are_configured(self) -> bool:
        """Whether there is any token."""
        return bool(self._digests)

    def role_of_token(self, token: str) -> Role:
        """Returns whose token this is. Takes the same time for every wrong token."""
        token_digest, token_role = sha256(token.encode()).digest(), Role.NOBODY
        for role, digest in self._digests.items():
            if hmac.compare_digest(digest, token_digest):
                token_role = role
        return token_role

    def role_of(self, request: Request) -> Role:
        """Returns the role of who makes a request: that of its bearer token; without any tokens in the configuration,
        programs on this machine are viewers."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.role_of_token(token.strip())
        return Role.VIEWER if not self.are_configured and _is_local(request) else Role.NOBODY

    def require(self, request: Request, required: Role) -> None:
        """Checks that a request may do what takes this role. Raises Refused: as if there were no such route, if the
        server has no tokens and the request comes from elsewhere."""
        role = self.role_of(request)
        if role >= required:
            return
        if not self.are_configured and role is Role.NOBODY:
            raise Refused(HTTPStatus.NOT_FOUND, UsageError("the server has nothing here", place=request.url.path))
        if role is Role.NOBODY:
            raise Refused(
                HTTPStatus.UNAUTHORIZED,
                ConfigError(
                    "the token is none of this server's roles",
                    place=request.url.path,
                    remedy="Send the token that server.roles names there, as Authorization: Bearer TOKEN.",
                ),
            )
        if not self.are_configured:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                ConfigError(
                    "nobody may act on this server: it has no token for an operator",
                    place=request.url.path,
                    remedy="Add server: {roles: {operator: {env: VARIABLE}}} to a configuration, and start the server "
                    "again.",
                ),
            )
        raise Refused(
            HTTPStatus.FORBIDDEN,
            UsageError("a viewer may not act", place=request.url.path, remedy="Use the token of the operator."),
        )


def _is_local(request: Request) -> bool:
    """Whether a request comes from a program on this machine. A name in ``Host`` is another machine's page in a browser
    that was sent here; a header of a proxy stands for another machine."""
    client, host = request.client, request.url.hostname
    if client is None or not is_loopback(client.host) or any(name in request.headers for name in _FORWARDED):
        return False
    return host == "localhost" or (host is not None and is_loopback(host))

"""Logins of people at the page of a server: signed cookies, tokens of forms, and a limit for wrong logins.

The key is made when the server starts, so a login ends with the process at the latest. A cookie holds the role, an id
and an end, and no secret.
"""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address

from cdc.server.roles import Role

COOKIE = "towpath_session"
LASTS_S = 8 * 3600
"""The time for which a login lasts."""
_MOST_WRONG, _WRONG_S = 5, 60.0
_MOST_ADDRESSES = 1000
_MOST_OPEN = 10
"""Forms of one address that are read at once."""


@dataclass(frozen=True)
class LoginSession:
    """A login."""

    role: Role
    id: str
    ends_s: int
    """Unix time."""


class LoginSessions:
    """Makes and checks logins. ``clock`` is for tests."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._key, self._clock = secrets.token_bytes(32), clock

    def cookie(self, role: Role) -> str:
        """Returns the value of the cookie of a new login."""
        text = f"{int(role)}.{secrets.token_urlsafe(16)}.{int(self._clock()) + LASTS_S}"
        return f"{text}.{self._sign('session', text)}"

    def read(self, cookie: str | None) -> LoginSession | None:
        """Returns the login of a cookie; None if it is not ours, was changed, or has ended."""
        text, _, mark = (cookie or "").rpartition(".")
        if not text.isascii() or not hmac.compare_digest(mark.encode(), self._sign("session", text).encode()):
            return None
        role, id_, ends = text.split(".")
        session = LoginSession(Role(int(role)), id_, int(ends))
        return session if session.ends_s > self._clock() else None

    def form_token(self, session: LoginSession) -> str:
        """Returns what a form of this login sends along, which pages of others cannot know."""
        return self._sign("form", session.id)

    def is_form_token(self, session: LoginSession, form_token: str) -> bool:
        """Whether a form comes from a page of this login."""
        return hmac.compare_digest(form_token.encode(), self.form_token(session).encode())

    def _sign(self, what: str, text: str) -> str:
        return urlsafe_b64encode(hmac.digest(self._key, f"{what}:{text}".encode(), sha256)).decode().rstrip("=")


class LoginLimit:
    """Counts wrong and open logins by address. A network of IPv6 counts as one address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()
        self._open: Counter[str] = Counter()

    def wait_s(self, address: str) -> float:
        """Returns how long this address has to wait until it may try again; 0 if it may now."""
        times = self._wrong.get(_network(address))
        if times is None or len(times) < _MOST_WRONG:
            return 0.0
        return max(0.0, times[0] + _WRONG_S - self._clock())

    @contextmanager
    def attempt(self, address: str) -> Iterator[bool]:
        """A context for one login of an address; whether it may be tried beside the others of the same address."""
        key = _network(address)
        self._open[key] += 1
        try:
            yield self._open[key] <= _MOST_OPEN
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def wrong(self, address: str) -> None:
        """Takes note of a wrong login."""
        key = _network(address)
        times = self._wrong.setdefault(key, deque(maxlen=_MOST_WRONG))
        times.append(self._clock())
        self._wrong.move_to_end(key)
        while len(self._wrong) > _MOST_ADDRESSES:
            self._wrong.popitem(last=False)


def _network(address: str) -> str:
    try:
        network_address = ip_address(address)
    except ValueError:
        return address
    return address if network_address.version == 4 else network_address.exploded[:19]

"""The URL of a server on the command line, and the password to it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

import typer

from cdc.base.addresses import Address
from cdc.base.errors import UsageError


@dataclass(frozen=True)
class ServerUrl:
    """The parts of a server's URL, as the command line has it."""

    scheme: str
    user: str
    password: str | None
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> ServerUrl:
        """Splits the URL. The messages never repeat it, since it may hold a password. Raises UsageError."""
        form = "Write it like mysql://user@host:3306 or mariadb://user@host:3306."
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise UsageError("the URL has no valid host and port", remedy=form) from None
        if parts.scheme not in ("mysql", "mariadb"):
            raise UsageError("the URL does not begin with mysql:// or mariadb://", remedy=form)
        if not parts.hostname:
            raise UsageError("the URL names no host", remedy=form)
        if not parts.username:
            raise UsageError("the URL names no user", remedy=form)
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise UsageError(
                "the URL has something after the port",
                remedy=r"End it with the port; --tables 'db\..*' of `cdc init` chooses tables.",
            )
        password = None if parts.password is None else unquote(parts.password)
        return cls(parts.scheme, unquote(parts.username), password, parts.hostname, port or 3306)

    @property
    def place(self) -> str:
        return str(Address(self.host, self.port))

    @property
    def url(self) -> str:
        """The URL without the password."""
        return f"{self.scheme}://{quote(self.user, safe='')}@{self.place}"


@dataclass(frozen=True)
class Login:
    """The password, and whether it stays in the environment or is written into a file."""

    password: str
    from_environment: bool


def login_at(url: ServerUrl, variable: str) -> Login:
    """Returns the password from the URL, else from an environment variable, else from the terminal. Raises
    UsageError."""
    if url.password is not None:
        return Login(url.password, from_environment=False)
    password = os.environ.get(variable)
    if password is not None:
        return Login(password, from_environment=True)
    if not sys.stdin.isatty():
        raise UsageError(
            "no password is given, and there is no terminal to ask for it",
            remedy=f"Set ${variable} (it may be empty).",
        )
    asked: str = typer.prompt(
        f"Password of {url.user} at {url.place}", default="", hide_input=True, show_default=False, err=True
    )
    return Login(asked, from_environment=False)

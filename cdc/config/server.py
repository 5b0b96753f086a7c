"""``server``: how ``cdc server`` serves this destination's store to other machines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from cdc.addresses import is_loopback
from cdc.config.values import Doc, FilledText, Section, Whole

_SUBSCRIBER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


class TokenConfig(Section):
    """The place of a subscriber's token: an environment variable or a file."""

    env: FilledText | None = None
    """Environment variable that holds the token."""
    file: Path | None = None
    """File whose first line is the token."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("needs either env or file")
        return self


class ServerConfig(Section):
    """The server that hands out batches and bytes of this store to other machines (`cdc server`). It needs the package
    `towpath[server]`. Destinations that one process serves agree on everything but their tokens."""

    http: Whole = Field(default=8040, ge=1, le=65535)
    """Port of the server. `cdc server --http` takes precedence."""
    host: FilledText = "127.0.0.1"
    """Address of this machine at which it listens. Another one than a loopback address needs `certificate`."""
    certificate: Annotated[Path | None, Doc(example="server.pem")] = None
    """File with the server's certificate (PEM), and those between it and the CA. A relative path is taken from the
    folder of this file."""
    key: Annotated[Path | None, Doc(example="server.key")] = None
    """File with the certificate's private key (PEM). A relative path is taken from the folder of this file."""
    tokens: Annotated[dict[str, TokenConfig], Doc(example={"apply": {"env": "SHOP_APPLY_TOKEN"}})] = Field(default={})
    """The token of each subscriber, `{env: VARIABLE}` or `{file: PATH}`, of at least 16 characters; `apply` fills the
    tables. A token opens its own subscription only."""

    @field_validator("tokens")
    @classmethod
    def _subscribers(cls, tokens: dict[str, TokenConfig]) -> dict[str, TokenConfig]:
        for name in tokens:
            if not _SUBSCRIBER.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a subscriber")
        return tokens

    @model_validator(mode="after")
    def _tls(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together; give both, or neither")
        if self.certificate is None and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} needs certificate and key: tokens must not cross the network in clear; add both, or "
                "use host: 127.0.0.1"
            )
        return self

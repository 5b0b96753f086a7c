"""``store.standby``: which part this machine's store has in a pair of master and standby."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from cdc.config.values import DurationS, FilledText, Section
from cdc.errors import ConfigError


class StandbyConfig(Section):
    """The same section may stand on both machines, but for ``role``: so a take-over changes one word."""

    role: Literal["none", "sync_master", "async_master", "standby"] = "none"
    """``sync_master``: capture waits for the standby when it ends. ``async_master``: it does not. ``standby``:
    `cdc standby` follows another machine's store."""
    listen: FilledText | None = None
    """A master's address and port for standbys."""
    master: FilledText | None = None
    """The address at which a standby reaches its master."""
    timeout_s: DurationS = 5.0
    """How long capture, when it ends, waits until the standby has everything (``sync_master``)."""
    secret_env: str | None = None
    """Name of the environment variable that holds the secret of both sides."""
    secret_file: Path | None = None
    """File with the secret; relative to the configuration file."""

    @field_validator("listen", "master")
    @classmethod
    def _address(cls, text: str | None) -> str | None:
        from cdc.addresses import parse_address

        if text is not None:
            try:
                parse_address(text)
            except ConfigError as error:
                raise ValueError(error.message) from None
        return text

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.role in ("sync_master", "async_master") and self.listen is None:
            raise ValueError(f"role {self.role} needs listen; add listen: host:port, an address of this machine")
        if self.role == "standby" and self.master is None:
            raise ValueError("role standby needs master; add master: host:port, the master's listen")
        if self.secret_env is not None and self.secret_file is not None:
            raise ValueError("secret_env and secret_file contradict each other; keep one of them")
        return self

"""``server.ha``: several servers of one destination, of which one leads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from cdc.base.addresses import check_host
from cdc.config.values import Doc, DurationS, FilledText, Section


class HaConfig(Section):
    """Servers on several machines, of which ZooKeeper elects one that leads. Each has a store of its own, which it
    reads again from the source where the readers are. It needs `meta.kind: zookeeper`, whose `hosts` and `root` count
    here, too."""

    address: Annotated[FilledText | None, Doc(example="10.0.0.7", only_with="meta.kind: zookeeper")] = None
    """Name or IPv4 address at which clients reach this machine; another one on each machine. Without it the destination
    has one server."""
    session_timeout_s: DurationS = Field(default=5.0, ge=1, le=60)
    """Time of silence after which ZooKeeper takes a server for dead, and another one takes over. ZooKeeper grants 2 to
    20 of its ticks, which are 2 s unless configured."""

    @property
    def enabled(self) -> bool:
        """Whether there are several servers."""
        return self.address is not None

    @field_validator("address")
    @classmethod
    def _address(cls, address: str | None) -> str | None:
        return None if address is None else check_host(address)

"""The leadership of destinations that several servers have (``server.ha``), by an election in ZooKeeper.

:class:`ZooKeeperLeadership` is a :class:`~cdc.server.leadership.Leadership`. The election itself is in
:mod:`cdc.canal.cluster`. A server that takes over from another one rolls back the batches that were handed out there:
their bytes are in that server's store, and no ack of them counts any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from anyio import CapacityLimiter

from cdc.base.errors import LeaseHeldError, MetaUnavailableError, NotLeaderError
from cdc.base.log import get_logger
from cdc.batches.subscribers import roll_back_from
from cdc.canal.cluster.candidacy import Candidacy, Held
from cdc.canal.cluster.member import Member
from cdc.canal.cluster.nodes import ServerNode, Tree
from cdc.meta import open_meta
from cdc.server.leadership import Fence
from cdc.server.threads import in_thread

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

_AGAIN_S = 0.2
_log = get_logger(__name__)


class Cluster:
    """This process among the servers of its clusters: a member for each ZooKeeper and root that its destinations have.
    Safe in any thread."""

    def __init__(self, server_of: Callable[[DestinationConfig], ServerNode]) -> None:
        """``server_of``: how others reach this process for a destination, once it listens."""
        self._server_of = server_of
        self._mutex = threading.Lock()
        self._members: dict[tuple[str, str, float, ServerNode], Member] = {}

    def member(self, config: DestinationConfig) -> Member:
        """Returns the member for a destination. Raises MetaUnavailableError, ConfigError."""
        meta, ha = config.meta, config.server.ha
        hosts = meta.zookeepers
        assert hosts is not None  # checked when it was loaded
        key = (hosts, meta.base, ha.session_timeout_s, self._server_of(config))
        with self._mutex:
            if key not in self._members:
                self._members[key] = Member(hosts, Tree(meta.base), key[3], session_timeout_s=ha.session_timeout_s)
            return self._members[key]

    def close(self) -> None:
        """Ends all sessions."""
        with self._mutex:
            members, self._members = list(self._members.values()), {}
        for member in members:
            member.close()


class ZooKeeperLeadership:
    """The right to run one destination, among servers on several machines."""

    def __init__(self, config: DestinationConfig, cluster: Cluster) -> None:
        self._config, self._cluster = config, cluster
        self._threads = CapacityLimiter(2)
        self._member: Member | None = None
        self._candidacy: Candidacy | None = None
        self._held: Held | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    @property
    def holder(self) -> str | None:
        leader = None if self._candidacy is None else self._candidacy.leader
        return None if leader is None else leader.address

    @property
    def servers(self) -> Sequence[str] | None:
        return None if self._candidacy is None else self._candidacy.servers

    async def acquire(self) -> int:
        self._loop = asyncio.get_running_loop()
        member = self._member = await in_thread(lambda: self._cluster.member(self._config), self._threads)
        candidacy = self._candidacy = member.campaign(self._config.name, self._notify)
        while True:
            held = candidacy.held
            if held is None:
                await self._changed.wait()
                self._changed.clear()
                continue
            try:
                await in_thread(partial(take_over, self._config, candidacy, held), self._threads)
            except NotLeaderError:
                continue
            except (
                MetaUnavailableError,
                LeaseHeldError,
            ) as error:  # another process has changed it, or the session is being lost
                _log.warning("batches of the former leader are not rolled back yet", reason=str(error))
                await asyncio.sleep(_AGAIN_S)
                continue
            if candidacy.held == held:
                self._held = held
                return held.epoch

    async def lost(self) -> str:
        candidacy = self._candidacy
        assert candidacy is not None
        while candidacy.held == self._held:
            await self._changed.wait()
            self._changed.clear()
        leader = self.holder
        return "its session with ZooKeeper was lost" if leader is None else f"{leader} leads now"

    async def release(self) -> None:
        self._held = None
        candidacy, self._candidacy = self._candidacy, None
        if candidacy is not None and self._member is not None:
            member = self._member
            await in_thread(lambda: member.withdraw(candidacy), self._threads)

    # --- what requests ask, in any thread

    def require(self) -> int:
        """Returns the epoch. Raises NotLeaderError unless this process leads, and no other one can have been elected
        yet."""
        candidacy = self._candidacy
        held = self._held
        if candidacy is None or held is None:
            raise self.error()
        candidacy.require()
        if candidacy.held != held:
            raise self.error()
        return held.epoch

    @property
    def fence(self) -> Fence | None:
        return self._fence

    def _fence(self) -> tuple[str, int]:
        """Returns what each change of the meta checks. Raises NotLeaderError."""
        candidacy, held = self._candidacy, self._held
        if candidacy is None or held is None or candidacy.held != held:
            raise self.error()
        return candidacy.fence()

    def error(self) -> NotLeaderError:
        """Returns the error for requests while this process does not lead. It names the one that does."""
        candidacy = self._candidacy
        if candidacy is not None:
            return candidacy.error()
        return NotLeaderError("this server does not lead the destination", place=self._config.name)

    def _notify(self) -> None:
        """Called in a thread of the member."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._changed.set)


def take_over(config: DestinationConfig, candidacy: Candidacy, held: Held) -> None:
    """Rolls back the batches that another server has handed out. Raises NotLeaderError, MetaUnavailableError."""
    if held.former is None or held.former.address == candidacy.address:
        return  # their bytes and manifests are here
    with open_meta(config, fence=candidacy.fence) as meta, meta.change() as state:
        for name, subscription in state.subscriptions.items():
            if subscription.outstanding:
                ids = roll_back_from(subscription, subscription.outstanding[0].batch)
                _log.warning(
                    "batches rolled back: another server had handed them out",
                    destination=config.name,
                    subscriber=name,
                    batches=ids,
                    server=held.former.address,
                )

"""A server's part in the election of one destination's leader.

The server that creates the ephemeral node ``running`` leads. It is created in one transaction with a larger epoch in
``towpath/leader``, whose version is then the fence: a change of the meta that checks it fails once another server has
been elected, however long its writer was paused.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc.base.errors import NotLeaderError
from cdc.base.log import get_logger
from cdc.canal.cluster.nodes import LeaderRecord, ServerNode, parse_leader, parse_running, render_running

if TYPE_CHECKING:
    from cdc.canal.cluster.member import Member

_log = get_logger(__name__)


@dataclass(frozen=True)
class Held:
    """A leadership of this process."""

    epoch: int
    session: int
    version: int
    """Version of the node ``towpath/leader``."""
    former: ServerNode | None
    """The server that led before; None if none did."""


class Candidacy:
    """The election of one destination, as this process sees it. The thread of :class:`Member` makes the steps; all
    other methods are safe in any thread."""

    def __init__(self, member: Member, destination: str, on_change: Callable[[], object]) -> None:
        self._member, self.destination, self._on_change = member, destination, on_change
        tree = member.tree
        self._running, self._leader = tree.running(destination), tree.leader(destination)
        self._members = tree.members(destination)
        self._shown = f"{self._members}/{member.server.address}"
        self._nonce = secrets.token_hex(8)
        self._mutex = threading.RLock()
        """Held during a step, so that :meth:`leave` does not meet one."""
        self._held: Held | None = None
        self._left = False
        self._elsewhere: ServerNode | None = None
        self.servers: tuple[str, ...] = ()
        """The addresses of all servers that have the destination and are up, as seen last."""

    # --- what is known

    @property
    def address(self) -> str:
        """The address of this server."""
        return self._member.server.address

    @property
    def held(self) -> Held | None:
        """The leadership that this process has; None: another one may have it."""
        return self._held

    @property
    def leader(self) -> ServerNode | None:
        """The server that leads; None if nobody does, or it is not known."""
        return self._member.server if self._held is not None else self._elsewhere

    def is_leader(self) -> bool:
        """Whether this process leads, and no other one can have been elected yet."""
        held = self._held
        return held is not None and self._member.is_sure(held.session)

    def require(self) -> None:
        """Raises NotLeaderError, which names the leader, unless :meth:`is_leader`."""
        if not self.is_leader():
            raise self.error()

    def error(self) -> NotLeaderError:
        """Returns the error for a request that only the leader may answer."""
        leader = self._elsewhere
        who = "no server does now" if leader is None else f"{leader.address} does"
        return NotLeaderError(
            f"this server ({self._member.server.address}) does not lead the destination: {who}",
            place=self.destination,
            remedy="Ask the leader; clients that know all servers find it by themselves.",
            leader=None if leader is None else leader.http,
        )

    def fence(self) -> tuple[str, int]:
        """Returns the node and its version that each change of the meta has to check. Raises NotLeaderError."""
        held = self._held
        if held is None:
            raise self.error()
        return self._leader, held.version

    # --- steps, in the thread of the member

    def notice_loss(self) -> None:
        """Gives the leadership up if the session is gone, or nothing was heard of it for its whole time."""
        with self._mutex:
            held = self._held
            if held is not None and self._member.may_have_ended(held.session):
                self._lose("the session with ZooKeeper has ended, or was silent for its whole time")

    def step(self) -> None:
        """Looks at the nodes, and takes the leadership if it is free. Raises KazooException, KazooTimeoutError."""
        with self._mutex:
            if self._left:
                return
            member, client = self._member, self._member.client
            member.show(self._shown)
            self.servers = tuple(sorted(member.get(client.get_children_async(self._members))))
            session = member.session
            stat = member.get(client.exists_async(self._running, watch=member.wake))
            held = self._held
            if stat is None:
                if held is not None:
                    self._lose("its node was deleted")
                self._elsewhere = None
                self._elect(session)
            elif stat.ephemeralOwner != session:
                if held is not None:
                    self._lose("another server leads")
                self._note_leader()
            elif held is None:
                self._adopt(session)

    def _elect(self, session: int) -> None:
        from kazoo.exceptions import NoNodeError

        member, client = self._member, self._member.client
        before, version = self._read_record()
        if version is None:
            member.get(client.ensure_path_async(self._leader))
            before, version = self._read_record()
            if version is None:
                raise NoNodeError
        record = LeaderRecord(
            (0 if before is None else before.epoch) + 1, member.server, self._nonce, time.time_ns() // 1_000_000
        )
        transaction = client.transaction()
        transaction.set_data(self._leader, record.render(), version)
        transaction.create(self._running, render_running(member.server.address, record.epoch), ephemeral=True)
        results = member.get(transaction.commit_async())
        if any(isinstance(result, Exception) for result in results):
            member.wake()  # another server was faster
            return
        if member.session != session:
            return  # it was made by a session that is gone, or will be adopted
        self._win(Held(record.epoch, session, version + 1, None if before is None else before.server))

    def _adopt(self, session: int) -> None:
        """Deals with a node that this session has made without being told: the answer was lost, or this process has
        given its leadership up since then. It begins anew, with an epoch of its own."""
        self._member.get(self._member.client.delete_async(self._running))
        self._member.wake()

    def _note_leader(self) -> None:
        from kazoo.exceptions import NoNodeError

        try:
            data, _ = self._member.get(self._member.client.get_async(self._running))
        except NoNodeError:
            self._member.wake()
            return
        address = parse_running(data, self._running)
        record, _ = self._read_record()
        if address is None:
            leader = None
        elif record is not None and record.server.address == address:
            leader = record.server
        else:
            leader = ServerNode(address)
        if leader != self._elsewhere:
            self._elsewhere = leader
            self._on_change()

    def _read_record(self) -> tuple[LeaderRecord | None, int | None]:
        from kazoo.exceptions import NoNodeError

        try:
            data, stat = self._member.get(self._member.client.get_async(self._leader))
        except NoNodeError:
            return None, None
        return parse_leader(data, self._leader), stat.version

    def _win(self, held: Held) -> None:
        self._held, self._elsewhere = held, None
        _log.info("leads the destination", destination=self.destination, epoch=held.epoch)
        self._on_change()

    def _lose(self, reason: str) -> None:
        held, self._held = self._held, None
        assert held is not None
        _log.warning(
            "does not lead the destination any more", destination=self.destination, epoch=held.epoch, reason=reason
        )
        self._on_change()

    def leave(self) -> None:
        """Takes this server out of the election, and deletes its nodes."""
        with self._mutex:
            self._left = True
            held, self._held = self._held, None
            for path in [self._running] if held is not None else []:
                self._delete(path)
            self._delete(self._shown)

    def _delete(self, path: str) -> None:
        """Deletes a node of this session. If ZooKeeper does not answer, it goes with the session."""
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        member = self._member
        try:
            stat: Any = member.get(member.client.exists_async(path))
            if stat is not None and stat.ephemeralOwner == member.session:
                member.get(member.client.delete_async(path, stat.version))
        except (KazooException, KazooTimeoutError) as error:
            _log.debug("node is left to the end of the session", node=path, reason=type(error).__name__)

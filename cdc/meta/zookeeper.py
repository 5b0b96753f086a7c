"""The meta in ZooKeeper, for several machines. After Canal's ZooKeeperMetaManager, with leases of our own.

A change is one multi-transaction below ``{root}/destinations/{destination}``, under kazoo's lock. It checks that the
lock is still held and that nothing was changed since the state was read, so a holder that was thought dead cannot
write. Nodes: ``docs/formats/meta.md``.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cdc.base.addresses import Address
from cdc.base.errors import LeaseHeldError, MetaUnavailableError, UsageError
from cdc.base.log import get_logger
from cdc.meta import zookeeper_nodes as nodes
from cdc.meta.base import DurableMeta
from cdc.meta.state import State
from cdc.meta.zookeeper_connection import ZooKeeperConnection
from cdc.meta.zookeeper_nodes import Nodes

DEFAULT_ROOT = "/otter/canal"
_MEMBERS = "cluster"
"""The parent of the nodes of servers that have the destination."""
_LOCK, _HOLDER, _LOCKS = f"{nodes.OURS}/lock", f"{nodes.OURS}/holder", f"{nodes.OURS}/locks"
_PAUSE_S = 0.05
# Failed checks of a change that mean: another process has changed the meta, or the session has ended.
_CONFLICTS = {
    "BadVersionError",
    "ConnectionClosedError",
    "NodeExistsError",
    "NoNodeError",
    "NotEmptyError",
    "SessionExpiredError",
}
_log = get_logger(__name__)


@dataclass(frozen=True)
class _Loaded:
    state: State
    nodes: Nodes
    versions: dict[str, int]
    number: int | None
    """The number of the change that wrote the state; None if there was none."""
    foreign: dict[str, frozenset[str]]
    """Names of other clients' nodes below each subscriber's node."""


class ZooKeeperMeta(DurableMeta):
    """The meta of one destination below ``{root}/destinations/{destination}``.

    ``hosts`` is a list like ``h1:2181,h2:2181``, ``source_address`` host and port of the source, which Canal's tools
    show beside a position. A holder of the lock that is silent for ``session_timeout_s`` loses it. A call waits for
    ZooKeeper up to ``wait_s``, and :meth:`change` for another holder up to ``lock_wait_s``.

    ``fence`` is that of a server which leads the destination: it returns a node and the version that it must still have
    when a change is made, and raises the error of a change that must not begin.
    """

    def __init__(
        self,
        hosts: str,
        destination: str,
        *,
        root: str = DEFAULT_ROOT,
        source_address: tuple[str, int] | None = None,
        session_timeout_s: float = 10.0,
        wait_s: float = 10.0,
        lock_wait_s: float = 30.0,
        fence: Callable[[], tuple[str, int]] | None = None,
    ) -> None:
        if not destination or "/" in destination or destination in (".", ".."):
            raise UsageError(f"{destination!r} cannot be the name of a destination: it must be the name of a node")
        self._destination = destination
        self._base = f"{root.rstrip('/')}/destinations/{destination}"
        self._address = None if source_address is None else Address(*source_address)
        self._lock_wait_s = lock_wait_s
        self._fence = fence
        self._connection = ZooKeeperConnection(hosts, session_timeout_s, wait_s)
        self._latest: tuple[int, State] | None = None
        """The state that was read last, and the number of the change that wrote it: each change writes the
        destination's own node."""
        self._holder = f"{_process_name()} ({secrets.token_hex(4)})"

    @property
    def place(self) -> str:
        return self._name("")

    def read(self) -> State:
        client = self._connection.client()
        if self._fence is None:
            return self._load(client).state
        with self._connection.errors("read the meta"):  # a leader reads it for each request
            number = client.retry(self._read_number, client)
        latest = self._latest
        if latest is None or latest[0] != number:
            loaded = self._load(client)
            if loaded.number is None:
                return loaded.state
            latest = self._latest = loaded.number, loaded.state
        return latest[1].copied()

    def _read_number(self, client: Any) -> int | None:
        client.sync(self._base)  # this member of the ensemble may be behind
        return _change_number(self._get_ours(client))

    @contextmanager
    def change(self) -> Iterator[State]:
        fence = None if self._fence is None else self._fence()
        client = self._connection.client()
        with self._locked(client) as lock:
            loaded = self._load(client)
            before = nodes.render(loaded.state, self._address, "")
            yield loaded.state
            if loaded.nodes.get(nodes.OURS) and nodes.render(loaded.state, self._address, "") == before:
                return
            self._commit(client, lock, loaded, fence)

    @contextmanager
    def lock(self, name: str, what: str, *, wait_s: float = 0.0, shared: bool = False) -> Iterator[None]:
        client = self._connection.client()
        recipe = client.ReadLock if shared else client.WriteLock
        lock = recipe(self._path(f"{_LOCKS}/{name}"), _process_name())
        # kazoo takes a time-out of zero for none at all.
        self._acquire(client, lock, wait_s=max(wait_s, _PAUSE_S), doing=f"holds the lock of {what}", place=lock.path)
        try:
            yield
        finally:
            self._leave(client, lock)

    def hold(self, wait_s: float) -> None:
        from kazoo.exceptions import NodeExistsError, NoNodeError

        client, deadline = self._connection.client(), time.monotonic() + wait_s
        with self._connection.errors("become the holder"):
            while True:
                try:
                    client.create(self._path(_HOLDER), self._holder.encode(), ephemeral=True, makepath=True)
                    return
                except NodeExistsError:
                    try:
                        data, stat = client.get(self._path(_HOLDER))
                    except NoNodeError:
                        continue
                if stat.ephemeralOwner == client.client_id[0]:
                    return
                if data == self._holder.encode():  # left behind by a lost session of this object
                    client.delete(self._path(_HOLDER), stat.version)
                    continue
                if time.monotonic() >= deadline:
                    raise LeaseHeldError(
                        f"{data.decode(errors='replace')} keeps this meta in memory",
                        place=self._name(_HOLDER),
                        remedy="Wait until it ends, or end it; its hold is released when its session expires.",
                    )
                time.sleep(_PAUSE_S)

    def held_locks(self) -> list[str]:
        from kazoo.exceptions import NoNodeError

        client = self._connection.client()
        with self._connection.errors("look for locks"):
            try:
                names = client.get_children(self._path(_LOCKS))
                return sorted(name for name in names if client.get_children(self._path(f"{_LOCKS}/{name}")))
            except NoNodeError:
                return []

    def remove(self) -> list[str]:
        from kazoo.exceptions import NoNodeError, NotEmptyError

        client = self._connection.client()
        with self._connection.errors("look for the meta"):
            if client.exists(self._base) is None:
                return []
        if self.read() != State(destination=self._destination):
            with self.change() as state:  # whole or not at all
                state.source = None
                state.subscriptions.clear()
        try:
            with self._connection.errors("remove the meta"):
                client.delete(self._path(nodes.OURS), recursive=True)
                with suppress(NoNodeError, NotEmptyError):
                    client.delete(self._path(_MEMBERS))
                try:
                    client.delete(self._base)
                except NotEmptyError:
                    return [self._name(name) for name in sorted(client.get_children(self._base))]
                except NoNodeError:
                    pass
        except MetaUnavailableError as error:
            raise MetaUnavailableError(
                error.message, place=error.place, remedy="Part of it may be removed; try again."
            ) from error
        return []

    def close(self) -> None:
        self._connection.drop()

    # names ------------------------------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return f"{self._base}/{path}"

    def _name(self, path: str) -> str:
        return f"zookeeper://{self._connection.hosts}{self._base}{path and '/'}{path}"

    # reading ----------------------------------------------------------------------------------------------------

    def _load(self, client: Any) -> _Loaded:
        deadline = time.monotonic() + self._lock_wait_s
        while True:
            with self._connection.errors("read the meta"):
                loaded: _Loaded | None = client.retry(self._read_nodes, client)
            if loaded is not None:
                return loaded
            if time.monotonic() >= deadline:
                raise MetaUnavailableError("changes too often to be read", place=self.place, remedy="Try again.")

    def _read_nodes(self, client: Any) -> _Loaded | None:
        """Reads all nodes as of one moment; None if they changed meanwhile.

        Each change writes the destination's own node, and ZooKeeper shows changes in order. So nothing has changed if
        that node is the same before and after.
        """
        from kazoo.exceptions import NoNodeError

        client.sync(self._base)  # this member of the ensemble may be behind
        before = self._get_ours(client)
        children: dict[str, frozenset[str]] = {}
        try:
            subscribers = [name for name in client.get_children(self._base) if name not in nodes.RESERVED]
            waiting = [(name, client.get_children_async(self._path(name))) for name in subscribers]
            children = {name: frozenset(answer.get()) for name, answer in waiting}
            ours = [name for name in subscribers if nodes.OURS in children[name]]
            paths = [f"{name}/{child}" for name in ours for child in children[name] & nodes.OWN]
            marks = [(path, client.get_children_async(self._path(path))) for path in paths if path.endswith("/mark")]
            paths += [f"{path}/{mark}" for path, answer in marks for mark in answer.get()]
            contents = self._get_all(client, [*ours, *paths])
        except NoNodeError:
            if before is not None:
                return None
            ours, contents = [], {}  # nothing is stored here yet
        after = self._get_ours(client)
        if _change_number(before) != _change_number(after):
            return None
        if after is not None:
            contents[nodes.OURS] = after
        data = {path: content for path, (content, _) in contents.items()}
        return _Loaded(
            state=nodes.parse(data, self._destination, self._name),
            nodes=data,
            versions={path: stat.version for path, (_, stat) in contents.items()},
            number=_change_number(after),
            foreign={name: held - nodes.OWN if name in ours else held for name, held in children.items()},
        )

    def _get_all(self, client: Any, paths: list[str]) -> dict[str, tuple[bytes, Any]]:
        """Returns content and stat of each node. Raises NoNodeError if one is gone."""
        waiting = [(path, client.get_async(self._path(path))) for path in paths]
        return {path: answer.get() for path, answer in waiting}

    def _get_ours(self, client: Any) -> tuple[bytes, Any] | None:
        from kazoo.exceptions import NoNodeError

        try:
            return self._get_all(client, [nodes.OURS])[nodes.OURS]
        except NoNodeError:
            return None

    # changing ---------------------------------------------------------------------------------------------------

    def _commit(self, client: Any, lock: str, loaded: _Loaded, fence: tuple[str, int] | None) -> None:
        """Writes a change whole. If the answer is lost, checks whether it was done. Raises MetaUnavailableError, and
        what the fence raises."""
        from kazoo.exceptions import ConnectionLoss, KazooException, OperationTimeoutError

        change = secrets.token_hex(8)
        after = nodes.render(loaded.state, self._address, change)
        strangers = {name: held for name, held in loaded.foreign.items() if name not in loaded.nodes}
        nodes.refuse_foreign(loaded.state, strangers, self._name)
        unsure = False
        while True:
            try:
                refused = self._write(client, lock, loaded, after, fence)
                break
            except (ConnectionLoss, OperationTimeoutError):
                unsure = True  # the next try either succeeds, or finds the change done
            except KazooException as error:
                refused = error
                break
        if refused is None or (unsure and self._was_made(change)):
            return
        if type(refused).__name__ in _CONFLICTS:
            if self._fence is not None and self._fence() != fence:
                _log.warning("change refused: it began in an earlier leadership", place=self.place)
            raise MetaUnavailableError(
                f"another process changed it, or the lock was lost with the session ({type(refused).__name__})",
                place=self.place,
                remedy="Nothing was changed; try again.",
            ) from refused
        with self._connection.errors("write the meta"):
            raise refused

    def _write(
        self, client: Any, lock: str, loaded: _Loaded, after: Nodes, fence: tuple[str, int] | None
    ) -> Exception | None:
        """Tries the transaction; returns None if it was done, else the error of the first failed check."""
        from kazoo.exceptions import RolledBackError

        transaction = client.transaction()
        transaction.check(lock, 0)
        if fence is not None:
            transaction.check(*fence)
        for path in sorted(loaded.nodes, reverse=True):  # children before their parent
            if path not in after and not loaded.foreign.get(path):
                transaction.delete(self._path(path), loaded.versions[path])
        for path, data in sorted(after.items()):
            if path in loaded.nodes:
                if data != loaded.nodes[path] and not nodes.only_holds_others(path):
                    transaction.set_data(self._path(path), data, loaded.versions[path])
            elif path not in loaded.foreign:
                transaction.create(self._path(path), data)
        results = transaction.commit()
        failed = [result for result in results if isinstance(result, Exception)]
        return next((error for error in failed if not isinstance(error, RolledBackError)), None)

    def _was_made(self, change: str) -> bool:
        """Whether the change was made. Raises MetaUnavailableError if that cannot be found out."""
        try:
            client = self._connection.client()
            with self._connection.errors("look"):
                client.retry(client.sync, self._base)
                node = client.retry(self._get_ours, client)
        except MetaUnavailableError as error:
            raise MetaUnavailableError(
                f"the connection was lost during a change, and it is not known whether it was made: {error.message}",
                place=self.place,
                remedy="It was made as a whole or not at all. Try again when ZooKeeper answers.",
            ) from error
        return node is not None and change.encode() in node[0]

    # the lock ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, client: Any) -> Iterator[str]:
        """Holds the lock; yields the path of a node that exists as long as it is held."""
        lock = client.Lock(self._path(_LOCK), _process_name())
        self._acquire(
            client, lock, wait_s=self._lock_wait_s, doing="is changing it and does not finish", place=self.place
        )
        try:
            yield f"{lock.path}/{lock.node}"
        finally:
            self._leave(client, lock)

    def _acquire(self, client: Any, lock: Any, *, wait_s: float, doing: str, place: str) -> None:
        from kazoo.exceptions import LockTimeout

        got = False
        try:
            with self._connection.errors("lock the meta"):
                try:
                    got = lock.acquire(timeout=wait_s)
                except LockTimeout:
                    got = False
                if not got:
                    others = lock.contenders()
        finally:
            if not got:
                self._leave(client, lock)
        if not got:
            raise LeaseHeldError(
                f"{others[0] if others else 'another process'} {doing}",
                place=place,
                remedy="Wait until it ends, or end it; the lock is released with its session.",
            )

    def _leave(self, client: Any, lock: Any) -> None:
        """Leaves the queue for the lock. A node left there would block all others as long as the session lives, so the
        session ends if the node cannot be deleted."""
        from kazoo.exceptions import KazooException, NoNodeError, SessionExpiredError
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            for node in client.get_children(lock.path):
                if node.startswith(lock.prefix):
                    client.delete(f"{lock.path}/{node}")
        except (NoNodeError, SessionExpiredError):
            return  # the node is deleted with its session
        except (KazooException, KazooTimeoutError) as error:
            _log.warning("lock not released; ending the session", place=self.place, reason=type(error).__name__)
            self._connection.drop(client)


def _change_number(node: tuple[bytes, Any] | None) -> int | None:
    """Returns ZooKeeper's number of the change that wrote a node."""
    return None if node is None else int(node[1].mzxid)


def _process_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"

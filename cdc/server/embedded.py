"""The whole server as an object: for ``cdc server``, and for programs that run it themselves.

In a program with an event loop::

    async with EmbeddedServer("conf") as server:
        print(server.url, server.canal_address)
        ...

In a program without one, the server has a thread of its own::

    with EmbeddedServer("conf", http=0) as server:
        ...
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cdc.base.errors import CdcError, ConfigError, UsageError
from cdc.canal.cluster.nodes import ServerNode
from cdc.config import find
from cdc.server.cluster import Cluster, ZooKeeperLeadership
from cdc.server.destinations import Listening, ServedDestination, agreed, is_served, listening
from cdc.server.folder import ConfigChange, ConfigFolder
from cdc.server.instance import SharedParts, Timings
from cdc.server.instances import Instances
from cdc.server.leadership import Leadership, LocalLeadership
from cdc.server.live import LiveDestinations
from cdc.server.processes import Log, Spawner

if TYPE_CHECKING:
    import uvicorn

    from cdc.config import DestinationConfig, ServerConfig
    from cdc.server.canal_listener import CanalListener
    from cdc.server.http import HttpSide


class EmbeddedServer:
    """A server of destinations. Start and stop it once: as a context of ``async with`` in an event loop that stays
    responsive, or of ``with``, which gives it a thread."""

    def __init__(
        self,
        conf_dir: Path | str,
        names: Sequence[str] = (),
        *,
        http: int | None = None,
        canal_port: int | None = None,
        options: Sequence[str] = (),
        leadership: Callable[[DestinationConfig], Leadership] | None = None,
        timings: Timings | None = None,
    ) -> None:
        """``names``: the destinations; none: all of the folder that are configured for a server, those that come later
        included. ``http``, ``canal_port``: ports instead of the configured ones; 0: any that is free. ``options``:
        global options of ``cdc`` for captures that the server starts, such as ``--log-format json``."""
        self._folder = ConfigFolder(Path(conf_dir), names)
        self._http, self._canal_port = http, canal_port
        self._options = tuple(options)
        self._cluster = Cluster(self._reached_at)
        self._leadership, self._timings = leadership or self._leadership_of, timings or Timings()
        self._stack = AsyncExitStack()
        self._http_server: uvicorn.Server | None = None
        self._where: Listening | None = None
        self._settings: ServerConfig | None = None
        """Settings that all destinations of this process share."""
        self._canal_listener: type[CanalListener]
        self._canal: CanalListener | None = None
        self._is_accepting = False
        """Whether Canal's clients are let in: once the destinations are open, so that none is told that its destination
        should start first."""
        self._canal_opening = asyncio.Lock()
        self._thread: _Thread | None = None
        self.live = LiveDestinations()
        self.instances: Instances
        """The instances; set once the server has started, and used in its event loop alone."""

    @property
    def url(self) -> str:
        """The address of HTTP."""
        assert self._where is not None, "the server has not started"
        return self._where.url

    @property
    def canal_address(self) -> str | None:
        """``host:port`` for Canal's clients; None as long as no destination is served to them."""
        return None if self._canal is None else self._canal.address

    # --- start and stop

    async def start(self) -> None:
        """Begins to serve. Raises ConfigError if there is nothing to serve, a package, a token or a certificate is
        missing, destinations contradict each other, or a port cannot be had."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        http_side, self._canal_listener = await asyncio.to_thread(_load_packages)
        changes = await asyncio.to_thread(self._read)
        configs = [change.config for change in changes if change.config is not None and is_served(change.config)]
        of_canal = [config for config in configs if config.server.canal.enabled]
        if self._canal_port is not None and not of_canal:
            raise UsageError(
                "--port is of Canal's protocol, which no destination has enabled",
                remedy="Add server: {canal: {enabled: true}} to its configuration; the port of HTTP is --http.",
            )
        where = listening(configs, self._http)
        self._settings = _settings(configs)
        self._stack.push_async_callback(asyncio.to_thread, self._cluster.close)
        spawner = Spawner(self._options)
        self._stack.callback(spawner.close)
        forward = "json" if "json" in self._options else "console"
        surroundings = SharedParts(
            self.live,
            spawner,
            self._admit,
            self._leadership,
            self._timings,
            lambda name: Log(partial(_forward, name, forward)),
        )
        self.instances = Instances(self._folder, surroundings)
        side = await http_side.open(self.live, self.instances, self._settings.roles, where)
        self._counters, server = side.answers.counters, side.server
        listener = await asyncio.to_thread(_listen, where)
        self._stack.callback(listener.close)
        self._where = Listening(where.host, listener.getsockname()[1], where.certificate, where.key)
        self._http_server = server
        self._stack.push_async_callback(self.instances.close)
        self._stack.push_async_callback(self._close_canal)
        if of_canal:
            await self._admit(of_canal[0])
        await self.instances.start(changes)
        async with self._canal_opening:
            self._is_accepting = True
            if self._canal is not None:
                await self._canal.start()
        for work in (side.answers.expire_locks(), self.instances.watch(self._settings.scan_s), side.alarms.follow()):
            self._stack.push_async_callback(_end, asyncio.create_task(work))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        self._stack.push_async_callback(self._end_http, serving)
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        if serving.done():
            serving.result()

    async def stop(self) -> None:
        """Answers what has begun, ends captures, and gives up all destinations."""
        if self._http_server is not None:
            await self.instances.hand_over()
            self._http_server.should_exit = True
        await self._stack.aclose()

    def _leadership_of(self, config: DestinationConfig) -> Leadership:
        return ZooKeeperLeadership(config, self._cluster) if config.server.ha.enabled else LocalLeadership(config)

    def _reached_at(self, config: DestinationConfig) -> ServerNode:
        """Returns how others reach this process, once it listens."""
        host, where, server = config.server.ha.address, self._where, config.server
        assert host is not None and where is not None
        http = replace(where, host=host)
        port = self._canal.port if server.canal.enabled and self._canal is not None else http.port
        return ServerNode(f"{host}:{port}", http.url if server.tokens else None)

    def _read(self) -> list[ConfigChange]:
        """Reads the configurations. Raises ConfigError if there is nothing to serve."""
        changes, names = self._folder.scan(at_once=True), self._folder.names
        errors: list[CdcError] = []
        served = 0
        for change in changes:
            try:
                if change.error is not None:
                    raise change.error
                if change.config is not None and (names or is_served(change.config)):
                    ServedDestination(change.config)
                    served += 1
            except CdcError as error:
                errors.append(error)
        for name in names:
            if all(change.name != name for change in changes):
                find(self._folder.folder, name)  # raises
        if errors and (names or not served):
            raise errors[0]
        if not served:
            raise ConfigError(
                "no destination has server.tokens, so there is nothing to serve",
                place=str(self._folder.folder),
                remedy="Add server: {tokens: {apply: {env: VARIABLE}}} to the configuration of each that is to be "
                "served; for Canal's clients, server: {canal: {enabled: true}}; to capture only, server: {capture: "
                "always}.",
            )
        return changes

    async def _end_http(self, http: asyncio.Task[None]) -> None:
        assert self._http_server is not None
        self._http_server.should_exit = True
        await http

    # --- Canal's port

    async def _admit(self, config: DestinationConfig) -> None:
        """Compares what concerns the whole process with what it was started with, and opens the port of Canal's clients
        for the first destination that has any. Raises ConfigError."""
        settings = self._settings
        assert settings is not None
        for key in ("http", "host", "certificate", "key", "scan_s", "roles"):
            if key == "http" and self._http is not None:
                continue
            if key in ("scan_s", "roles") and key not in config.server.model_fields_set:
                continue
            if getattr(config.server, key) != getattr(settings, key):
                raise _other_process(config, key)
        if not config.server.canal.enabled:
            return
        async with self._canal_opening:
            if self._canal is None:
                await self._open_canal(config)
            elif config.server.canal != settings.canal:
                raise _other_process(config, "canal")

    async def _open_canal(self, config: DestinationConfig) -> None:
        assert self._settings is not None
        self._settings = self._settings.model_copy(update={"canal": config.server.canal})
        canal = await asyncio.to_thread(
            self._canal_listener, self._settings, self.live, self._counters, self._canal_port
        )
        if self._is_accepting:
            try:
                await canal.start()
            except BaseException:
                canal.close()
                raise
        self._canal = canal

    async def _close_canal(self) -> None:
        if self._canal is not None:
            await self._canal.stop()
            self._canal.close()

    # --- contexts

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        self._thread = _Thread(self)
        self._thread.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._thread.end()

    def documents(self) -> list[dict[str, Any]]:
        """Returns the documents of all instances, as ``GET /v1/instances`` does. Safe in any thread."""
        if self._thread is None:
            return self.instances.documents()
        documents: list[dict[str, Any]] = self._thread.call(self.instances.documents)
        return documents


class _Thread:
    """A thread with an event loop, in which a server runs."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="cdc-server", daemon=True)

    def begin(self) -> None:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def end(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def call(self, run: Callable[[], Any]) -> Any:
        async def work() -> Any:
            return run()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._server:
            self._started.set()
            await self._stop.wait()


def _load_packages() -> tuple[type[HttpSide], type[CanalListener]]:
    """Loads what the server needs, which takes a while. Raises ConfigError."""
    try:
        from cdc.server.canal_listener import CanalListener
        from cdc.server.http import HttpSide
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the package {error.name} is not installed", place="cdc server", remedy="Install towpath[server]."
        ) from None
    return HttpSide, CanalListener


def _settings(configs: Sequence[DestinationConfig]) -> ServerConfig:
    """Returns the settings of the process that serves these destinations. Raises ConfigError if they differ."""
    canal = {config.name: config.server.canal for config in configs if config.server.canal.enabled}
    settings: dict[str, Any] = {"canal": agreed("canal", canal)} if canal else {}
    for key in ("scan_s", "roles"):
        values = {
            config.name: getattr(config.server, key) for config in configs if key in config.server.model_fields_set
        }
        default = type(configs[0].server).model_fields[key].default
        settings[key] = agreed(key, values) if values else default
    return configs[0].server.model_copy(update=settings)


def _other_process(config: DestinationConfig, key: str) -> ConfigError:
    return ConfigError(
        f"server.{key} differs from what this server was started with",
        place=str(config.file),
        remedy="Give it the value that the server's other destinations have, or start the server again.",
    )


def _listen(where: Listening) -> socket.socket:
    try:
        family = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((where.host, where.port), family=family, backlog=256)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {where.host}, port {where.port}: {error.strerror or error}",
            place="server.http",
            remedy="Choose another port, with --http or server.http, or another server.host.",
        ) from None


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _forward(name: str, log_format: str, line: str) -> None:
    """Writes a line of a capture to this process's own log, with the destination."""
    if log_format == "json" and line.startswith("{"):
        sys.stderr.write(f'{{"destination": "{name}", {line[1:]}\n')
    else:
        sys.stderr.write(f"{name}: {line}\n")

"""Serves the metrics of a capture and its health over HTTP, in a thread of the capture's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cdc.base.errors import ConfigError
from cdc.base.log import get_logger
from cdc.watch.metrics.capture import CaptureCollector, CaptureMonitor, Health
from cdc.watch.metrics.families import AlarmCounts, missing_package

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

_log = get_logger(__name__)
_CLIENT_TIMEOUT_S = 10.0
_TEXT = (("Content-Type", "text/plain; charset=utf-8"),)


@contextmanager
def serving(
    config: DestinationConfig, port: int, monitor: CaptureMonitor, alarms: AlarmCounts | None = None
) -> Iterator[None]:
    """Serves ``/metrics`` and ``/health`` of a capture while the context lasts. Raises ConfigError if
    ``prometheus_client`` is not installed, or the port cannot be had."""
    with serving_application(config, port, application(config, monitor, alarms)):
        yield


@contextmanager
def serving_application(config: DestinationConfig, port: int, app: Callable[..., Iterable[bytes]]) -> Iterator[None]:
    """Serves an application of :func:`application_of` while the context lasts. Raises ConfigError if the port cannot be
    had."""
    server = _listen(config.metrics.host, port, app)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    _log.info("metrics are served", address=f"http://{config.metrics.host}:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def application(
    config: DestinationConfig, monitor: CaptureMonitor, alarms: AlarmCounts | None = None
) -> Callable[..., Iterable[bytes]]:
    """Returns the WSGI application of a capture. Raises ConfigError if ``prometheus_client`` is not installed."""
    return application_of(CaptureCollector(config, monitor, alarms), monitor.health, "metrics.port")


def application_of(collector: Any, health_of: Callable[[], Health], place: str) -> Callable[..., Iterable[bytes]]:
    """Returns the WSGI application of a collector and a health. ``place``: the key of the port, for the ConfigError if
    ``prometheus_client`` is not installed."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
    except ModuleNotFoundError:
        raise missing_package(place) from None

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            body: Iterable[bytes] = metrics(environ, start)
            return body
        if path == "/health":
            health = health_of()
            start("200 OK" if health.ok else "503 Service Unavailable", list(_TEXT))
            return [f"{health.text}\n".encode()]
        start("404 Not Found", list(_TEXT))
        return [b"There are /metrics and /health.\n"]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Logs requests for developers only."""
        _log.debug("request", client=self.client_address[0], line=format % args)


def _listen(host: str, port: int, app: Callable[..., Iterable[bytes]]) -> WSGIServer:
    try:
        return make_server(host, port, app, server_class=_Server, handler_class=_Handler)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}",
            place="metrics.port",
            remedy="Choose another port, with --metrics-port or metrics.port, or another metrics.host.",
        ) from None

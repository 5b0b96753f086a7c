"""An S3 server for tests: moto, which keeps objects in the memory of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

from cdc.testing.servers import free_port

HOST = "127.0.0.1"
KEY, SECRET = "testing", "testing"  # any key opens it


@dataclass
class S3Server:
    """A running server with one bucket, and the log of its requests. It has no access rights, no throttling and no slow
    answers. It answers one request after another, so a conditional put is atomic."""

    endpoint: str
    bucket: str
    requests: list[str] = field(default_factory=list)
    """``METHOD key status`` of each request, in order. A list of keys is ``LIST prefix status``."""
    ignores_conditions: bool = False
    """The server replaces objects although the request says that they must be new, as old servers do."""
    fail: bool = False
    """The server answers every request with 503."""
    before: Callable[[str], object] | None = None
    """Is called with ``METHOD key`` before each request."""

    def filesystem(self) -> Any:
        import s3fs

        return s3fs.S3FileSystem(
            key=KEY,
            secret=SECRET,
            client_kwargs={"endpoint_url": self.endpoint, "region_name": "us-east-1"},
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def download(self, prefix: str, folder: Path) -> None:
        """Copies the objects below a prefix into a folder that does not exist yet."""
        self.filesystem().get(f"{self.bucket}/{prefix}/", f"{folder}/", recursive=True)

    def of(self, part: str) -> list[str]:
        """Returns the requests so far whose keys hold this text, and forgets all of them."""
        found = [request for request in self.requests if part in request]
        self.requests.clear()
        return found


class _Application:
    """Moto's WSGI application, one request at a time, with a log."""

    def __init__(self, server: S3Server, application: Any) -> None:
        self._server, self._application = server, application
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        key = unquote(environ.get("RAW_URI", environ["PATH_INFO"]).partition("?")[0])
        query = environ.get("QUERY_STRING", "")
        method = environ["REQUEST_METHOD"]
        if "list-type" in query:
            prefix = next((one for one in query.split("&") if one.startswith("prefix=")), "prefix=")
            method, key = "LIST", unquote(unquote(prefix.removeprefix("prefix=")))
        if self._server.before is not None:
            self._server.before(f"{method} {key}")
        if self._server.ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if self._server.fail:
            self._server.requests.append(f"{method} {key} 503")
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"away"]
        status = []

        def started(line: str, *more: Any) -> Any:
            status.append(line.split()[0])
            return start_response(line, *more)

        with self._lock:
            body = list(self._application(environ, started))
            self._server.requests.append(f"{method} {key} {status[0]}")
        return body


@contextmanager
def serve(bucket: str, host: str = HOST) -> Iterator[S3Server]:
    """Runs a server with one bucket, at an address of this machine."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    port = free_port()
    found = S3Server(f"http://{host}:{port}", bucket)
    application = _Application(found, DomainDispatcherApplication(create_backend_app))
    server = make_server(host, port, application, True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, name="s3", daemon=True)
    thread.start()
    try:
        found.filesystem().call_s3("create_bucket", Bucket=bucket)
        found.requests.clear()
        yield found
    finally:
        server.shutdown()
        thread.join()


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """Runs a server with one bucket and yields the bucket's URI. ``s3://`` leads there for this process and its children,
    by Amazon's environment variables."""
    import s3fs

    with serve(bucket) as server:
        settings = {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",  # for deltalake
        }
        try:
            with patch.dict(os.environ, settings):
                s3fs.S3FileSystem.clear_instance_cache()
                yield f"s3://{bucket}"
        finally:
            s3fs.S3FileSystem.clear_instance_cache()

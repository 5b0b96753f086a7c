"""An S3 server for tests: moto, which keeps objects in the memory of this process, or VersityGW, a real server that keeps
them in files, where ``TOWPATH_OBJECT_STORE=versitygw`` says so or a test asks for it. Clients reach VersityGW through a
proxy in this process, which logs requests and injects faults."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

from cdc.testing.servers import ACCESS_KEY_ID, SECRET_ACCESS_KEY, Server, free_port

HOST = "127.0.0.1"
KEY, SECRET = ACCESS_KEY_ID, SECRET_ACCESS_KEY
KIND_VARIABLE = "TOWPATH_OBJECT_STORE"


@dataclass
class S3Server:
    """A running server with one bucket, and the log of its requests. moto has no access rights and answers one request
    after another, so a conditional put is atomic."""

    endpoint: str
    bucket: str
    process: Server | None = None
    """The real server behind the endpoint; None for moto."""
    requests: list[str] = field(default_factory=list)
    """``METHOD key status`` of each request, in order. A list of keys is ``LIST prefix status``."""
    ignores_conditions: bool = False
    """The server replaces objects although the request says that they must be new, as old servers do."""
    fail: bool = False
    """The server answers every request with 503."""
    faults: Callable[[str], int | None] | None = None
    """Is called with ``METHOD key`` before each request and returns the status of an error that answers it, or None. A
    negative status is answered after the request was carried out."""
    before: Callable[[str], object] | None = None
    """Is called with ``METHOD key`` before each request."""

    def filesystem(self, endpoint: str | None = None) -> Any:
        """Returns the file system of a client, at the server's endpoint or another one."""
        import s3fs

        return s3fs.S3FileSystem(
            key=KEY,
            secret=SECRET,
            client_kwargs={"endpoint_url": endpoint or self.endpoint, "region_name": "us-east-1"},
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def download(self, prefix: str, folder: Path) -> None:
        """Copies the objects below a prefix into a folder that does not exist yet."""
        self.filesystem().get(f"{self.bucket}/{prefix}/", f"{folder}/", recursive=True)

    def of(self, part: str) -> list[str]:
        """Returns the requests so far whose keys hold this text, and forgets all of them."""
        requests = [request for request in self.requests if part in request]
        self.requests.clear()
        return requests


_MESSAGES = {
    500: ("InternalError", "We encountered an internal error."),
    503: ("SlowDown", "Reduce your request rate."),
}


class _Application:
    """The server's WSGI application, with a log and faults."""

    def __init__(self, server: S3Server, application: Any) -> None:
        self._server, self._application = server, application
        self._turn: Any = threading.Lock() if server.process is None else nullcontext()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        key = unquote(environ.get("RAW_URI", environ["PATH_INFO"]).partition("?")[0])
        query = environ.get("QUERY_STRING", "")
        method = environ["REQUEST_METHOD"]
        if "list-type" in query:
            prefix = next((parameter for parameter in query.split("&") if parameter.startswith("prefix=")), "prefix=")
            method, key = "LIST", unquote(unquote(prefix.removeprefix("prefix=")))
        if self._server.before is not None:
            self._server.before(f"{method} {key}")
        if self._server.ignores_conditions and "HTTP_IF_NONE_MATCH" in environ:
            self._let_replace(key, environ)
        error = 503 if self._server.fail else self._server.faults and self._server.faults(f"{method} {key}")
        if error and error > 0:
            _body(environ)  # a client that is still sending would see a connection that breaks
            return self._refuse(error, method, key, start_response)
        status: list[str] = []

        def started(line: str, *more: Any) -> Any:
            status.append(line.split()[0])
            return None if error else start_response(line, *more)

        with self._turn:
            body = list(self._application(environ, started))
            if error:
                return self._refuse(-error, method, f"{key} {status[0]} answered", start_response)
            self._server.requests.append(f"{method} {key} {status[0]}")
        return body

    def _refuse(self, status: int, method: str, key: str, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answers an error as Amazon words it."""
        self._server.requests.append(f"{method} {key} {status}")
        start_response(f"{status} {http.client.responses[status]}", [("Content-Type", "application/xml")])
        code, message = _MESSAGES[status]
        return [f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode() if method != "HEAD" else b""]

    def _let_replace(self, key: str, environ: dict[str, Any]) -> None:
        if self._server.process is None:
            del environ["HTTP_IF_NONE_MATCH"]
        else:  # VersityGW verifies the header by the signature
            self._server.filesystem(self._server.process.url).call_s3("delete_object", **_place(key))


def _place(key: str) -> dict[str, str]:
    bucket, _, name = key.lstrip("/").partition("/")
    return {"Bucket": bucket, "Key": name}


_HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}


class _Proxy:
    """A WSGI application that hands each request to a server as it came, signature included."""

    def __init__(self, process: Server) -> None:
        self._process = process

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        headers = {name[5:].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
        headers |= {"Content-Type": environ["CONTENT_TYPE"]} if environ.get("CONTENT_TYPE") else {}
        body = _body(environ)
        headers["Content-Length"] = str(len(body))
        connection = http.client.HTTPConnection(HOST, self._process.port, timeout=60)
        try:
            connection.putrequest(
                environ["REQUEST_METHOD"], environ["RAW_URI"], skip_host=True, skip_accept_encoding=True
            )
            for name, value in headers.items():
                if name.lower() not in _HOP:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:
            raise ConnectionResetError(f"{self._process.kind.name} went away") from error  # the client sees the same
        finally:
            connection.close()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
        start_response(f"{answer.status} {answer.reason}", kept)
        return [content]


def _body(environ: dict[str, Any]) -> bytes:
    if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", ""):
        return environ["wsgi.input"].read()  # type: ignore[no-any-return]
    return environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))  # type: ignore[no-any-return]


@contextmanager
def serve(bucket: str, host: str = HOST, *, kind: str | None = None, options: Sequence[str] = ()) -> Iterator[S3Server]:
    """Runs a server with one bucket, at an address of this machine. ``kind`` is moto or versitygw; None takes what the
    environment says, or moto."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    kind = kind or os.environ.get(KIND_VARIABLE, "moto")
    with ExitStack() as stack:
        process = None if kind == "moto" else stack.enter_context(Server(kind, options=options))
        port = free_port()
        s3_server = S3Server(f"http://{host}:{port}", bucket, process)
        backend = DomainDispatcherApplication(create_backend_app) if process is None else _Proxy(process)
        application = _Application(s3_server, backend)
        server = make_server(host, port, application, True, request_handler=MotoRequestHandler)
        thread = threading.Thread(target=server.serve_forever, name="s3", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        s3_server.filesystem().call_s3("create_bucket", Bucket=bucket)
        s3_server.requests.clear()
        yield s3_server


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

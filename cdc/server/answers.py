"""The answers of HTTP: documents, texts and bytes, for clients that may be slow, and requests that are refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cdc import __version__
from cdc.base.errors import CdcError, RetryableError, UsageError
from cdc.wire.protocol import DIGEST_HEADER, VERSION_HEADER, error_document, status_of

_SEND_S = 30.0
"""The time that a client may take to take a part of an answer."""
_BODY_S = 30.0
"""The time that a client may take to send a request."""
_PART_BYTES = 256 * 1024


class BoundedAnswer(Response):
    """An answer that gives up on a client that does not take it."""

    def __init__(
        self, content: bytes, status: int = HTTPStatus.OK, kind: str = "application/json", **headers: str
    ) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(content, status, {VERSION_HEADER: __version__, "cache-control": "no-store", **named}, kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await asyncio.wait_for(send(start), _SEND_S)
        body = memoryview(self.body)
        for at in range(0, max(1, len(body)), _PART_BYTES):
            part = bytes(body[at : at + _PART_BYTES])
            more = at + _PART_BYTES < len(body)
            await asyncio.wait_for(send({"type": "http.response.body", "body": part, "more_body": more}), _SEND_S)


def document(content: Any, status: int = HTTPStatus.OK) -> BoundedAnswer:
    """Returns an answer with a JSON document."""
    return BoundedAnswer(json.dumps(content, ensure_ascii=False).encode(), status)


def text(content: str, status: int = HTTPStatus.OK) -> BoundedAnswer:
    """Returns an answer with a text."""
    return BoundedAnswer(content.encode(), status, "text/plain; charset=utf-8")


def binary(data: bytes, status: int = HTTPStatus.OK) -> BoundedAnswer:
    """Returns an answer with bytes, and their SHA-256 in a header."""
    return BoundedAnswer(data, status, "application/octet-stream", **{DIGEST_HEADER: hashlib.sha256(data).hexdigest()})


def of_error(error: CdcError) -> BoundedAnswer:
    """Returns the answer with an error's document."""
    return document(error_document(error), status_of(error))


class Refused(Exception):
    """A request that is not worked on."""

    def __init__(self, status: HTTPStatus, error: CdcError) -> None:
        super().__init__(str(error))
        self.status, self.error = status, error

    def answer(self) -> BoundedAnswer:
        """Returns the answer that says why."""
        return document(error_document(self.error), self.status)


async def body_of(request: Request, most_bytes: int) -> bytes:
    """Reads the body of a request. Raises Refused if it is too large, or does not come."""
    parts: list[bytes] = []
    size = int(request.headers.get("content-length") or 0)
    try:
        async with asyncio.timeout(_BODY_S):
            if size <= most_bytes:
                size = 0
                async for part in request.stream():
                    size += len(part)
                    if size > most_bytes:
                        break
                    parts.append(part)
    except TimeoutError:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, RetryableError("the request did not come to its end")) from None
    if size > most_bytes:
        error = UsageError(f"the request has more than {most_bytes} bytes", place=request.url.path)
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
    return b"".join(parts)

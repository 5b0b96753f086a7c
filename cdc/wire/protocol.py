"""The names of the protocol between a client and ``cdc server``, and its error documents."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import cdc.base.errors
from cdc.base.errors import CdcError, NotLeaderError, RetryableError

API = 1
"""The version of the protocol, which is the first part of each path: ``/v1/…``."""
VERSION_HEADER = "towpath-version"
"""The version of towpath of either side, for logs and messages."""
DIGEST_HEADER = "towpath-sha256"
"""The SHA-256 of the body, in hexadecimal, in answers with bytes."""
REPEATED_HEADER = "towpath-repeated"
"""``1`` in a request that repeats one whose answer was lost."""
RUN_HEADER = "towpath-run"
"""Who sends the request, as JSON in ASCII: a :class:`cdc.base.run_identity.RunIdentity`."""
EPOCH_HEADER = "towpath-epoch"
"""The leadership epoch of the server that answers, where there are several servers. An answer of a lower epoch than one
that was seen is that of a former leader."""
LOCK_TTL_S = 30.0
"""The time for which the server holds a lock for a client that does not renew it."""
LONGEST_WAIT_S = 10.0
"""The longest wait of one request for a batch; a client that wants to wait longer asks again."""
MOST_BYTES = 8 * 1024 * 1024
"""The most bytes of a file in one answer."""
MOST_ENTRIES = 65536
"""The most index entries in one answer."""
MOST_BODY_BYTES = 16 * 1024 * 1024
"""The largest body of a request."""
MOST_MANIFESTS = 100
"""The most manifests in one answer."""


def error_document(error: CdcError) -> dict[str, Any]:
    """Returns an error as the JSON object of an answer."""
    document: dict[str, Any] = {
        "type": _public_type(error),
        "retryable": error.retryable,
        "message": error.message,
        "place": error.place,
        "remedy": error.remedy,
    }
    if isinstance(error, NotLeaderError):
        document["leader"] = error.leader
    return {"error": document}


def _public_type(error: CdcError) -> str:
    """The name of the nearest class that :mod:`cdc.base.errors` has; a client knows no others."""
    return next(
        str(kind.__name__) for kind in type(error).__mro__ if getattr(cdc.base.errors, kind.__name__, None) is kind
    )


def error_of(document: Any) -> CdcError | None:
    """Returns the error of :func:`error_document`; None if the document has none."""
    fields = document.get("error") if isinstance(document, dict) else None
    if not isinstance(fields, dict) or not isinstance(fields.get("message"), str):
        return None
    kind = getattr(cdc.base.errors, str(fields.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, CdcError)):  # of a newer server
        kind = RetryableError if fields.get("retryable") else cdc.base.errors.PermanentError
    place, remedy = (value if isinstance(value, str) else None for value in (fields.get("place"), fields.get("remedy")))
    if kind is NotLeaderError:
        leader = fields.get("leader")
        return NotLeaderError(
            fields["message"], place=place, remedy=remedy, leader=leader if isinstance(leader, str) else None
        )
    return kind(fields["message"], place=place, remedy=remedy)


def status_of(error: CdcError) -> HTTPStatus:
    """Returns the status of an answer with this error. Statuses are for people and proxies; clients read the
    document."""
    if isinstance(error, cdc.base.errors.BatchError | cdc.base.errors.LeaseHeldError):
        return HTTPStatus.CONFLICT
    if isinstance(error, NotLeaderError):
        return HTTPStatus.MISDIRECTED_REQUEST
    if error.retryable:
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.UNPROCESSABLE_ENTITY

"""A lease: a batch, and the right to end it until a moment."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cdc.batches.manifest import Manifest
from cdc.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Lease:
    """What ``get`` hands out. ``token`` is demanded by ack, rollback, check and renew until ``expires`` (aware)."""

    manifest: Manifest
    manifest_path: Path
    token: str
    expires: datetime

    @property
    def fingerprint(self) -> str:
        """Tells this lease from all others of its batch, and does not give its token away."""
        return fingerprint(self.token)

    @property
    def batch(self) -> int:
        """The batch's id."""
        return self.manifest.batch

    def as_dict(self) -> dict[str, Any]:
        """For JSON: ``batch``, ``token``, ``expires`` and ``manifest_path``, then the manifest's own keys."""
        manifest = self.manifest.model_dump(mode="json", exclude={"acked"})
        return {
            "batch": manifest.pop("batch"),
            "token": self.token,
            "expires": iso_time(self.expires),
            "manifest_path": str(self.manifest_path),
            **manifest,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Lease:
        """What :meth:`as_dict` made, back again; for a process that merges on another's behalf."""
        try:
            token, expires, path = data["token"], datetime.fromisoformat(data["expires"]), Path(data["manifest_path"])
            manifest = Manifest.model_validate(data)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is not a lease as `cdc batch get --json` prints it: {error}") from None
        return cls(manifest, path, token, expires)


def fingerprint(token: str) -> str:
    """The first 32 hexadecimal digits of the token's SHA-256; tokens are random, so nobody gets from it to them."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def iso_time(time: datetime) -> str:
    """An aware datetime in UTC: ``2026-11-21T09:41:36.123456Z``."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def time_us(time: datetime) -> int:
    """An aware datetime as microseconds since 1970, without rounding."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def iso_time_us(time_us: int) -> str:
    """Microseconds since 1970 as :func:`iso_time` writes them, without rounding."""
    seconds, micros = divmod(time_us, 1_000_000)
    return iso_time(datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros))

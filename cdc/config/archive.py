"""``store.archive``: the copy of a store in an object store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import field_validator

from cdc.config.values import Doc, DurationS, FilledText, Section

_WITH = "store.archive.url: …"
_URI = re.compile(r"file:///.+|(?!file:)[A-Za-z][A-Za-z0-9+.-]*://.+")


class ArchiveConfig(Section):
    """A copy of the store and the meta in an object store, from which a lost machine is rebuilt. Capture copies each
    segment when it is finished. A URI alone may be written instead of this section."""

    url: Annotated[FilledText | None, Doc(example="s3://bucket/archive")] = None
    """URI below which each destination has a folder of its own; null means no archive. It is reached with the access
    of `s3` if it is in S3."""
    meta_every: Annotated[DurationS, Doc(only_with=_WITH)] = 60.0
    """Time after which a changed meta is copied again."""
    keep_for: Annotated[DurationS | None, Doc(only_with=_WITH)] = None
    """Age from which a segment is removed from the archive if the store has removed it as well; null means never."""

    @field_validator("url")
    @classmethod
    def _url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if _URI.fullmatch(url) is None:
            raise ValueError("is not a URI; write s3://bucket/archive or file:///backup/archive")
        parts = urlsplit(url)
        if "@" in parts.netloc and parts.scheme not in ("abfs", "abfss"):  # there a container is named so
            raise ValueError("must not hold a key or a password; use s3.access_key_id and its secret")
        return url.rstrip("/")

    def _contradictions(self) -> Iterator[str]:
        keys = sorted(self.model_fields_set - {"url"})
        if self.url is None and keys:
            yield f"{keys[0]} has no effect without url; add url, or remove it"

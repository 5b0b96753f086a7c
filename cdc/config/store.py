"""``store``: where changes are kept between capture and apply.

Its sub-sections are ``encryption``, ``retain`` and ``disk`` (when segments are removed), ``archive`` (a copy in an
object store) and ``standby`` (replication to a second machine). With ``kind: server`` it is kept by another
machine's ``cdc server``, with ``kind: memory`` in the memory of ``cdc server`` on this one (:mod:`cdc.config.memory`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema, field_validator

from cdc.base.addresses import is_loopback
from cdc.config.archive import ArchiveConfig
from cdc.config.secret_source import Secret
from cdc.config.values import (
    AddressText,
    Command,
    Doc,
    DurationS,
    FilePath,
    FilledText,
    Folder,
    Section,
    SectionWithFolder,
    Whole,
    no_folder,
    require_http,
)
from cdc.disk.permissions import Permissions

_ASYNC = "flush: async"
_ASYNC_KEYS = ("flush_interval_s", "flush_least_pages", "flush_thorough_interval_s")
_HOURS = r"\s*\d{1,2}\s*"
_SERVER_KEYS = ("url", "token_env", "token_file", "ca_file", "retry_for_s")
_MEMORY = "kind: memory"
_MEMORY_KEYS = ("buffer_size", "buffer_unit_bytes", "batch_mode", "max_transaction_bytes")
_KEYS_OF_BOTH = {"kind", "stage", "permissions", *_SERVER_KEYS}


class RetainConfig(Section):
    """Removal of segments from the store, and the subscribers that hold them back."""

    acked_for: DurationS | None = 72 * 3600.0
    """Age from which a segment is removed that every subscriber has acked; null means that age alone is no reason."""
    unacked_for: DurationS | None = None
    """Age from which a segment is removed even if a subscriber has not acked it. That subscriber is cut off: its next
    `cdc batch get` fails. null means never."""
    max_bytes: Whole | None = Field(default=None, gt=0)
    """Size of the store above which acked segments are removed at any age; null means no limit."""
    lost_after: DurationS = 24 * 3600.0
    """Time after which an alarm names a subscriber that has left a transaction unacked. It must be less than
    `unacked_for`."""
    wait_for: tuple[FilledText, ...] = ("apply",)
    """Subscribers that hold the store back even before they have read for the first time."""
    wait_for_archive: Annotated[bool, Doc(only_with="store.archive.url: …")] = True
    """Whether a segment stays until it is in the archive, whatever else would let it go."""
    delete_at: Annotated[
        tuple[int, ...] | None,
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "pattern": rf"^{_HOURS}(;{_HOURS})*$"},
                    {"type": "integer", "minimum": 0, "maximum": 23},
                    {"type": "null"},
                ]
            }
        ),
    ] = None
    """Hours of the day, in local time, in which segments are removed because of their age: `'04'`, or several as
    `'04;16'` (RocketMQ's deleteWhen). null means any hour."""

    @field_validator("delete_at", mode="before")
    @classmethod
    def _parse_hours(cls, value: Any) -> Any:
        if value is None:
            return None
        parts = str(value).split(";") if isinstance(value, str | int) and not isinstance(value, bool) else [""]
        hours = [int(part) for part in parts if re.fullmatch(_HOURS, part)]
        if len(hours) != len(parts) or max(hours, default=24) > 23:
            raise ValueError("is not an hour of the day; write it like '04', several as '04;16'")
        return tuple(hours)

    def _contradictions(self) -> Iterator[str]:
        if self.unacked_for is None:
            return
        if self.acked_for is None or self.acked_for > self.unacked_for:
            kept = "null" if self.acked_for is None else f"{self.acked_for:g} s"
            yield (
                f"acked_for ({kept}) keeps acked segments longer than unacked_for ({self.unacked_for:g} s) keeps "
                "unacked ones; make acked_for the smaller one"
            )
        if self.lost_after >= self.unacked_for:
            yield (
                f"lost_after ({self.lost_after:g} s) must be less than unacked_for ({self.unacked_for:g} s), so that "
                "the alarm comes before a subscriber is cut off"
            )


class DiskConfig(Section):
    """Limits for a disk that fills up. The shares count everything on the disk, not only the store."""

    warn_ratio: float = Field(default=0.75, gt=0, le=1)
    """Used share of the disk from which a warning is logged."""
    clean_ratio: float = Field(default=0.85, gt=0, le=1)
    """Used share from which acked segments are removed at any age."""
    stop_ratio: float = Field(default=0.90, gt=0, le=1)
    """Used share from which nothing more is written: capture waits."""

    def _contradictions(self) -> Iterator[str]:
        if not self.warn_ratio <= self.clean_ratio <= self.stop_ratio:
            yield (
                f"warn_ratio {self.warn_ratio:g}, clean_ratio {self.clean_ratio:g} and stop_ratio {self.stop_ratio:g} "
                "must not fall: first the warning, then the cleaning, then the end of writing"
            )


class StandbyConfig(Section):
    """A second machine that holds a copy of the store. Both machines may have the same section except for `role`, so
    that a take-over changes one word."""

    role: Annotated[
        Literal["none", "sync_master", "async_master", "standby"],
        Doc(
            choices={
                "none": "no second machine",
                "sync_master": "the store that is copied; capture waits for the standby when it ends",
                "async_master": "the store that is copied; capture never waits",
                "standby": "`cdc standby` copies another machine's store to this one",
            }
        ),
    ] = "none"
    """The role of this machine."""
    listen: AddressText | None = None
    """Address at which a master accepts standbys, like `10.0.0.7:4100`. Both master roles need it."""
    master: AddressText | None = None
    """Address at which a standby reaches its master. `role: standby` needs it."""
    timeout_s: DurationS = 5.0
    """Longest time that capture with `role: sync_master` waits, when it ends, until the standby has everything."""
    secret_env: str | None = None
    """Environment variable that holds the secret of both machines, of at least 16 bytes."""
    secret_file: Annotated[FilePath | None, Doc(instead_of="secret_env")] = None
    """File that holds the secret of both machines. A relative path is taken from the folder of this file."""

    secret: ClassVar = Secret("store.standby", "the secret of master and standby")

    def _contradictions(self) -> Iterator[str]:
        if self.role in ("sync_master", "async_master") and self.listen is None:
            yield f"role {self.role} needs listen; add listen: host:port, an address of this machine"
        if self.role == "standby" and self.master is None:
            yield "role standby needs master; add master: host:port, the master's listen"


class OldKeyConfig(Section):
    """The place of a key with which files of the store were encrypted: an environment variable, a file or a command."""

    env: FilledText | None = None
    """Environment variable that holds the key."""
    file: Annotated[FilePath | None, Doc(instead_of="env")] = None
    """File whose first line is the key. A relative path is taken from the folder of this file."""
    command: Annotated[Command | None, Doc(instead_of="env or file")] = None
    """Program and arguments that print the key as their first line."""

    key: ClassVar = Secret("", "the key of the store", prefix="", required=True)


class EncryptionConfig(Section):
    """Encryption of row data in the store's files and in staged batches, with AES-256-GCM. It needs a key."""

    key_env: Annotated[FilledText | None, Doc(example="SHOP_STORE_KEY")] = None
    """Environment variable that holds the key for new files: 64 hexadecimal digits, as `openssl rand -hex 32` prints
    them."""
    key_file: Annotated[FilePath | None, Doc(instead_of="key_env", example="store.key")] = None
    """File whose first line is that key. A relative path is taken from the folder of this file."""
    key_command: Annotated[
        Command | None,
        Doc(instead_of="key_env or key_file", example=["vault", "kv", "get", "-field=key", "secret/shop"]),
    ] = None
    """Program and arguments that print that key as their first line, within 30 s. It is run without a shell."""
    old_keys: Annotated[tuple[OldKeyConfig, ...], Doc(example=[{"file": "store-2025.key"}])] = ()
    """Former keys, `{env: VARIABLE}`, `{file: PATH}` or `{command: [PROGRAM, …]}`: files that were encrypted with them
    stay readable. Without a key here, they are all that is known, and new files are not encrypted."""

    key: ClassVar = Secret("store.encryption", "the key of the store")


class StoreConfig(SectionWithFolder):
    """The durable store between capture and apply: binlog segments on a local disk."""

    kind: Annotated[
        Literal["file", "server", "memory"],
        Doc(
            choices={
                "file": "segments in a folder of this machine",
                "server": "the store of another machine, which `cdc server` serves at `url`",
                "memory": "a buffer in the memory of `cdc server`, for clients of Canal that only want a stream",
            }
        ),
    ] = "file"
    """Kind of the store."""
    path: Annotated[Folder, Doc(example="./data/shop/store")] = no_folder()
    """Folder of the store, which `kind: file` needs. A relative path is taken from the folder above that of this
    file."""
    url: Annotated[FilledText | None, Doc(example="https://store.example:8040", only_with="kind: server")] = None
    """Address of the server; with several servers (`server.ha`) those of all, separated by commas.
    `http://` is possible for a server on this machine only."""
    token_env: Annotated[FilledText | None, Doc(example="SHOP_APPLY_TOKEN", only_with="kind: server")] = None
    """Environment variable that holds the token that the server knows."""
    token_file: Annotated[FilePath | None, Doc(only_with="kind: server", instead_of="token_env")] = None
    """File whose first line is the token. A relative path is taken from the folder of this file."""
    ca_file: Annotated[FilePath | None, Doc(example="ca.pem", only_with="kind: server")] = None
    """File with the certificates (PEM) by which the server's own is verified; null means those of the system. A
    relative path is taken from the folder of this file."""
    retry_for_s: Annotated[DurationS, Doc(only_with="kind: server")] = 60.0
    """How long a request is repeated while the server cannot be reached."""
    buffer_size: Annotated[Whole, Doc(only_with=_MEMORY)] = Field(default=16384, ge=16, le=2**30)
    """Size of the buffer, a power of two: in units of `buffer_unit_bytes`, or in events, as `batch_mode` says. Capture
    reads nothing more from the source while so much is not acked."""
    buffer_unit_bytes: Annotated[Whole, Doc(only_with="batch_mode: memsize")] = Field(default=1024, ge=1, le=2**20)
    """Bytes of events for which each unit of `buffer_size` stands: 16 MiB in all by default."""
    batch_mode: Annotated[
        Literal["memsize", "itemsize"],
        Doc(
            choices={
                "memsize": "in units of buffer_unit_bytes",
                "itemsize": "in binlog events; a row event has up to 8 KiB of rows by the server's default",
            },
            only_with=_MEMORY,
        ),
    ] = "memsize"
    """The unit of `buffer_size`."""
    max_transaction_bytes: Annotated[Whole, Doc(only_with=_MEMORY)] = Field(default=268435456, ge=65536, le=2**34)
    """Largest transaction that capture takes, beside what the buffer holds already. A larger one stops capture with its
    position; nothing is left out."""
    segment_bytes: Whole = Field(default=268435456, ge=65536, le=2**40)
    """Size at which a new segment is begun. Segments are written, removed and copied as a whole."""
    flush: Annotated[
        Literal["sync", "async"],
        Doc(
            choices={
                "sync": "at once, before its position counts",
                "async": "later, as flush_interval_s, flush_least_pages and flush_thorough_interval_s say",
            }
        ),
    ] = "sync"
    """Time at which a transaction is flushed to the disk, and so becomes visible to readers."""
    flush_interval_s: Annotated[DurationS, Doc(only_with=_ASYNC)] = 0.5
    """Time from one flush to the next, if at least `flush_least_pages` wait for it."""
    flush_least_pages: Annotated[Whole, Doc(only_with=_ASYNC)] = Field(default=4, ge=0)
    """Number of pages of 4 KiB that `flush_interval_s` waits for."""
    flush_thorough_interval_s: Annotated[DurationS, Doc(only_with=_ASYNC)] = 10.0
    """Time from one flush to the next, however few pages wait for it. It must not be less than `flush_interval_s`."""
    slow_flush_s: DurationS = 0.5
    """Time above which a flush is logged as slow."""
    permissions: Annotated[
        Permissions,
        Doc(
            choices={
                "private": "only the user who runs Towpath",
                "group": "the group of the folder as well; it may read them",
            }
        ),
    ] = "private"
    """Access to the store's files, and to the copies below `stage` where that is a `file://` URI."""
    stage: str | None = None
    """URI below which the bytes of each batch are copied, like `s3://bucket/stage`, for executors that do not see
    `path`. null means that they see it. With `kind: server` executors read batches from the server, and only the
    chunks of snapshots lie here."""
    encryption: EncryptionConfig = EncryptionConfig()
    retain: RetainConfig = RetainConfig()
    disk: DiskConfig = DiskConfig()
    archive: ArchiveConfig = ArchiveConfig()
    standby: StandbyConfig = StandbyConfig()

    token: ClassVar = Secret("store", "the token that the server knows")

    @property
    def place(self) -> str:
        """The folder of the store, or the address of the server that has it, for messages."""
        return str(self.path) if self.url is None else self.url

    _run_folder: Path | None = None

    @property
    def in_memory(self) -> bool:
        """Whether this is the store of a running server that is configured with `kind: memory`: its `path` is a folder
        in memory, and its kind is `file`, since everything in the server reads it as one."""
        return self._run_folder is not None

    @property
    def run_folder(self) -> Path:
        """The folder in memory of a store that is :attr:`in_memory`."""
        assert self._run_folder is not None
        return self._run_folder

    @property
    def stages_batches(self) -> bool:
        """Whether the bytes of batches are copied to :attr:`stage`."""
        return self.stage is not None and self.kind == "file"

    @field_validator("archive", mode="before")
    @classmethod
    def _archive(cls, archive: Any) -> Any:
        return {"url": archive} if isinstance(archive, str) else archive

    @field_validator("buffer_size")
    @classmethod
    def _power_of_two(cls, size: int) -> int:
        if size & (size - 1):
            raise ValueError("must be a power of two")
        return size

    @field_validator("url")
    @classmethod
    def _url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        urls = [address.strip().rstrip("/") for address in url.split(",")]
        for server_url in urls:
            parts = require_http(
                server_url,
                otherwise="is not the address of a server; write https://HOST:PORT",
                with_secrets="must not hold a user or a password; use token_env or token_file",
            )
            if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
                raise ValueError("would send the token through the network in clear; write https://HOST:PORT")
        if len(set(urls)) < len(urls):
            raise ValueError("names the same server twice")
        return ",".join(urls)

    def _contradictions(self) -> Iterator[str]:
        yield from self._keys_of_the_kind()
        keys = [key for key in _ASYNC_KEYS if key in self.model_fields_set]
        if self.flush == "sync" and keys:
            yield f"{keys[0]} has no effect with flush: sync; remove it, or write flush: async"
        if self.flush_thorough_interval_s < self.flush_interval_s:
            yield (
                f"flush_thorough_interval_s {self.flush_thorough_interval_s:g} is below flush_interval_s"
                f" {self.flush_interval_s:g}; make it the larger of the two, since everything is flushed then"
            )
        if self.archive.url is None and "wait_for_archive" in self.retain.model_fields_set:
            yield "retain.wait_for_archive has no effect without archive; add archive: URI, or remove it"
        if self.standby.role == "sync_master" and self.flush == "async":
            yield (
                "flush: async and standby.role: sync_master contradict each other: a standby gets only what is on the "
                "disk, so every put would wait for a flush; use flush: sync, or async_master"
            )

    def _keys_of_the_kind(self) -> Iterator[str]:
        keys = self.model_fields_set
        if self.kind == "memory":
            for key in type(self).model_fields:
                if key in keys and key != "kind" and key not in _MEMORY_KEYS:
                    yield f"{key} has no effect with kind: memory, which keeps nothing; remove it"
            if self.batch_mode == "itemsize" and "buffer_unit_bytes" in keys:
                yield "buffer_unit_bytes has no effect with batch_mode: itemsize; remove it"
            return
        for key in _MEMORY_KEYS:
            if key in keys:
                yield f"{key} belongs to kind: memory; remove it, or change kind"
        if self.kind == "file":
            if self.__dict__["path"] is None:
                yield "path is missing; add it, or read a server's store with kind: server"
            for key in _SERVER_KEYS:
                if key in keys:
                    yield f"{key} belongs to kind: server; remove it, or change kind"
            return
        if self.url is None:
            yield "kind server needs url; add url: https://HOST:PORT"
        if not self.token.is_given:
            yield "kind server needs token_env or token_file"
        for key in type(self).model_fields:
            if key in keys and key not in _KEYS_OF_BOTH:
                yield f"{key} is set where the server runs; remove it here"

    @field_validator("stage")
    @classmethod
    def _stage(cls, stage: str | None) -> str | None:
        if stage is not None and not re.fullmatch(r"file:///.+|(?!file:)[A-Za-z][A-Za-z0-9+.-]*://.+", stage):
            raise ValueError("is not a URI; write file:///shared/stage or s3://bucket/stage")
        return stage

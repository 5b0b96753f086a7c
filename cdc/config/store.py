"""``store``: where changes lie between capture and apply, and when they are flushed."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from cdc.config.retain import DiskConfig, RetainConfig
from cdc.config.standby import StandbyConfig
from cdc.config.values import DurationS, FilledPath, Section, Whole
from cdc.permissions import Permissions
from cdc.store.writer.durability import FlushPolicy

_ASYNC_KEYS = ("flush_interval_s", "flush_least_pages", "flush_thorough_interval_s")


class StoreConfig(Section):
    """The durable store between capture and apply."""

    kind: Literal["file"] = "file"
    path: FilledPath
    flush: Literal["sync", "async"] = "sync"
    """``sync``: what is stored is made durable at once. ``async``: by the three keys below; readers see only what is
    durable either way."""
    flush_interval_s: DurationS = 0.5
    """So long after a flush comes the next one, if ``flush_least_pages`` pages of 4 KiB wait for it …"""
    flush_least_pages: Whole = Field(default=4, ge=0)
    flush_thorough_interval_s: DurationS = 10.0
    """… and so long after it, however little waits."""
    slow_flush_s: DurationS = 0.5
    """A flush that takes longer is logged."""
    segment_bytes: Whole = Field(default=268435456, ge=65536, le=2**40)
    retain: RetainConfig = RetainConfig()
    permissions: Permissions = "private"
    """Who may read the store's files, and the copies below ``stage`` where that is a ``file://`` URI: this user alone,
    or the group of the folder, too."""
    stage: str | None = None
    """URI below which a batch's byte ranges are copied, for executors that do not see ``path``; None: they do."""
    disk: DiskConfig = DiskConfig()
    standby: StandbyConfig = StandbyConfig()

    @field_validator("kind", mode="before")
    @classmethod
    def _kind(cls, kind: Any) -> Any:
        if kind == "memory":
            raise ValueError(
                "a memory store lives inside one process, and capture and apply are two; use file "
                "(a program of your own may use cdc.event_store.memory_store.MemoryStore)"
            )
        return kind

    @model_validator(mode="after")
    def _flush_keys(self) -> Self:
        given = [key for key in _ASYNC_KEYS if key in self.model_fields_set]
        if self.flush == "sync" and given:
            raise ValueError(f"{given[0]} means nothing with flush: sync; remove it, or write flush: async")
        if self.flush_thorough_interval_s < self.flush_interval_s:
            raise ValueError(
                f"flush_thorough_interval_s {self.flush_thorough_interval_s:g} is below flush_interval_s"
                f" {self.flush_interval_s:g}; it is when everything is flushed, so make it the larger of the two"
            )
        return self

    @model_validator(mode="after")
    def _standby_has_only_what_is_flushed(self) -> Self:
        if self.standby.role == "sync_master" and self.flush == "async":
            raise ValueError(
                "flush: async and standby.role: sync_master contradict each other: a standby gets what is on the disk, "
                "so a put would wait for the flush; use flush: sync, or async_master"
            )
        return self

    @property
    def flush_policy(self) -> FlushPolicy:
        """As the writer takes it."""
        return FlushPolicy(
            self.flush,
            interval_s=self.flush_interval_s,
            least_pages=self.flush_least_pages,
            thorough_interval_s=self.flush_thorough_interval_s,
            slow_flush_s=self.slow_flush_s,
        )

    @field_validator("stage")
    @classmethod
    def _stage(cls, stage: str | None) -> str | None:
        if stage is not None and not re.fullmatch(r"file:///.+|(?!file:)[A-Za-z][A-Za-z0-9+.-]*://.+", stage):
            raise ValueError("is no URI; write file:///shared/stage or s3://bucket/stage")
        return stage

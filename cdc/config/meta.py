"""``meta``: where cursors and batches are noted."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import field_validator, model_validator

from cdc.config.values import DurationS, FilledPath, FilledText, Section
from cdc.permissions import Permissions


class MetaConfig(Section):
    """Who reads what, and how far."""

    kind: Literal["file", "memory", "zookeeper"] = "file"
    path: FilledPath
    """Folder of the manifests, and of the meta file where that is the kind."""
    permissions: Permissions = "private"
    """Who may read and change it: this user alone, or the group of the folder, too."""
    hosts: FilledText | None = None
    """ZooKeeper's servers: ``h1:2181,h2:2181``."""
    root: FilledText = "/otter/canal"
    """ZooKeeper's node below which ``destinations/{destination}`` lies."""
    flush: Literal["sync", "period"] = "sync"
    period_s: DurationS = 1.0

    @field_validator("kind")
    @classmethod
    def _kind(cls, kind: str) -> str:
        if kind == "memory":
            raise ValueError("a memory meta lives inside one process; capture and DAGs need kind: file")
        return kind

    @field_validator("flush")
    @classmethod
    def _flush(cls, flush: str) -> str:
        if flush == "period":
            raise ValueError(
                "a meta stored by period lives in the memory of one process; capture, apply and DAGs are many, so use "
                "sync (a program of your own may use cdc.meta.mixed.MixedMeta)"
            )
        return flush

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, hosts: str | None) -> str | None:
        if hosts is not None and not re.fullmatch(rf"{_ZOOKEEPER}(,{_ZOOKEEPER})*", hosts):
            raise ValueError("must be ZooKeeper's servers, like h1:2181,h2:2181")
        return hosts

    @field_validator("root")
    @classmethod
    def _root(cls, root: str) -> str:
        if not re.fullmatch(r"(/[^/\s]+)+", root) or {".", ".."} & set(root.split("/")):
            raise ValueError("must be the path of a node, like /otter/canal")
        return root

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "zookeeper" and self.hosts is None:
            raise ValueError("kind zookeeper needs hosts; add hosts: h1:2181,h2:2181")
        if self.kind != "zookeeper":
            for key in ("hosts", "root"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key} belongs to kind: zookeeper; remove it, or change kind")
        if "period_s" in self.model_fields_set:
            raise ValueError("period_s belongs to flush: period; remove it")
        return self


_ZOOKEEPER = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"

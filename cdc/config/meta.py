"""``meta``: where cursors and batches are noted."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from cdc.config.values import FilledPath, FilledText, Section
from cdc.permissions import Permissions


class MetaConfig(Section):
    """Who reads what, and how far."""

    kind: Literal["file", "zookeeper"] = "file"
    path: FilledPath
    """Folder of the manifests, and of the meta file where that is the kind."""
    permissions: Permissions = "private"
    """Who may read and change it: this user alone, or the group of the folder, too."""
    hosts: FilledText | None = None
    """ZooKeeper's servers: ``h1:2181,h2:2181``."""
    root: FilledText = "/otter/canal"
    """ZooKeeper's node below which ``destinations/{destination}`` lies."""

    @field_validator("kind", mode="before")
    @classmethod
    def _kind(cls, kind: Any) -> Any:
        if kind == "memory":
            raise ValueError(
                "a memory meta lives inside one process, and capture and apply are two; use file or zookeeper "
                "(a program of your own may use cdc.event_store.memory_meta.MemoryMeta)"
            )
        return kind

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
        return self


_ZOOKEEPER = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"

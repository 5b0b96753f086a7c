"""``meta``: where subscriptions, cursors and outstanding batches are kept."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import field_validator, model_validator

from cdc.config.values import Doc, FilledText, Folder, SectionWithFolder, no_folder
from cdc.permissions import Permissions

_ZOOKEEPER = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"


class MetaConfig(SectionWithFolder):
    """The state of the store's readers: subscriptions, cursors and outstanding batches. It is beside the store: with
    `store.kind: server` the section is left out."""

    kind: Annotated[
        Literal["file", "zookeeper"],
        Doc(
            choices={
                "file": "a file on a local disk, for capture and apply on one machine",
                "zookeeper": "nodes in ZooKeeper, at the servers that hosts names",
            }
        ),
    ] = "file"
    """Storage of the state."""
    path: Annotated[Folder, Doc(example="./data/shop/meta")] = no_folder()
    """Folder of the batch manifests and, with `kind: file`, of the meta file; it must be given.
    A relative path is taken from the folder above that of this file."""
    permissions: Annotated[
        Permissions,
        Doc(
            choices={
                "private": "only the user who runs Towpath",
                "group": "the group of the folder as well; it may read and change them",
            }
        ),
    ] = "private"
    """Access to the files of the meta."""
    hosts: Annotated[FilledText | None, Doc(example="h1:2181,h2:2181", only_with="kind: zookeeper")] = None
    """Servers of ZooKeeper, like `h1:2181,h2:2181`."""
    root: Annotated[FilledText, Doc(only_with="kind: zookeeper")] = "/otter/canal"
    """Node of ZooKeeper below which `destinations/DEST` is kept."""

    @field_validator("kind", mode="before")
    @classmethod
    def _kind(cls, kind: Any) -> Any:
        if kind == "memory":
            raise ValueError(
                "a memory meta lives in one process, and capture and apply are two; use file or zookeeper "
                "(programs of your own may use cdc.event_store.memory_meta.MemoryMeta)"
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
    def _zookeeper_keys(self) -> Self:
        if self.kind == "zookeeper" and self.hosts is None:
            raise ValueError("kind zookeeper needs hosts; add hosts: h1:2181,h2:2181")
        if self.kind != "zookeeper":
            for key in ("hosts", "root"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key} belongs to kind: zookeeper; remove it, or change kind")
        return self

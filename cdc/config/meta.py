"""``meta``: where subscriptions, cursors and outstanding batches are kept."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import field_validator, model_validator

from cdc.config.values import Doc, FilledText, Folder, SectionWithFolder, no_folder
from cdc.permissions import Permissions

_ZOOKEEPER = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"


class MetaConfig(SectionWithFolder):
    """The state of the store's readers: subscriptions, cursors and outstanding batches. It is beside the store: with
    `store.kind: server` the section is left out."""

    kind: Annotated[
        Literal["file", "zookeeper", "memory", "mixed"],
        Doc(
            choices={
                "file": "a file on a local disk, for capture and apply on one machine",
                "zookeeper": "nodes in ZooKeeper, at the servers that hosts names",
                "memory": "the memory of `cdc server`, with `store.kind: memory`: it ends with the server",
                "mixed": "the memory of `cdc server`, with `store.kind: memory`, stored each second: in ZooKeeper if "
                "hosts is given, else in a file",
            }
        ),
    ] = "file"
    """Storage of the state."""
    path: Annotated[Folder, Doc(example="./data/shop/meta")] = no_folder()
    """Folder of the batch manifests and of the meta file, if there is one. It must be given, except with
    `kind: memory`. A relative path is taken from the folder above that of this file."""
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
    hosts: Annotated[FilledText | None, Doc(example="h1:2181,h2:2181", only_with="kind: zookeeper, or mixed")] = None
    """Servers of ZooKeeper, like `h1:2181,h2:2181`."""
    root: Annotated[FilledText, Doc(only_with="hosts")] = "/otter/canal"
    """Node of ZooKeeper below which `destinations/DEST` is kept."""

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
        if self.kind in ("file", "memory"):
            for key in ("hosts", "root"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key} belongs to kind: zookeeper; remove it, or change kind")
        if self.kind == "mixed" and self.hosts is None and "root" in self.model_fields_set:
            raise ValueError("root has no effect without hosts; remove it, or add hosts")
        if self.kind == "memory":
            for key in ("path", "permissions"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key} has no effect with kind: memory, which keeps nothing; remove it")
        return self

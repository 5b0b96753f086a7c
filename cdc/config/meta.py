"""``meta``: where subscriptions, cursors and outstanding batches are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import field_validator

from cdc.config.values import Doc, FilledText, Folder, SectionWithFolder, no_folder
from cdc.disk.permissions import Permissions

_ZOOKEEPER = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"
_NODES = r"(?:/[^/\s,]+)+"


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
    """Servers of ZooKeeper, like `h1:2181,h2:2181`. A node may follow the last one, as in `h1:2181,h2:2181/app`:
    everything is kept below it."""
    root: Annotated[FilledText, Doc(only_with="hosts")] = "/otter/canal"
    """Node of ZooKeeper below which `destinations/DEST` is kept."""

    @property
    def zookeepers(self) -> str | None:
        """The servers in ``hosts``, like ``h1:2181,h2:2181``."""
        return None if self.hosts is None else self.hosts.partition("/")[0]

    @property
    def base(self) -> str:
        """The whole path of ``root``: that of the node in ``hosts`` precedes it."""
        _, slash, node = (self.hosts or "").partition("/")
        return slash + node + self.root

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, hosts: str | None) -> str | None:
        if hosts is None:
            return None
        if not re.fullmatch(rf"{_ZOOKEEPER}(,{_ZOOKEEPER})*({_NODES})?", hosts):
            raise ValueError(
                "must be ZooKeeper's servers, like h1:2181,h2:2181, and at most one node, behind the last of them, "
                "like h1:2181,h2:2181/app"
            )
        servers, _, node = hosts.partition("/")
        listed = servers.split(",")
        for server in listed:
            if not 0 < int(server.rpartition(":")[2]) < 65536:
                raise ValueError(f"names {server}, which has no port from 1 to 65535")
            if listed.count(server) > 1:
                raise ValueError(f"names {server} twice")
        if {".", ".."} & set(node.split("/")):
            raise ValueError("has a node that is named . or ..")
        return hosts

    @field_validator("root")
    @classmethod
    def _root(cls, root: str) -> str:
        if not re.fullmatch(r"(/[^/\s]+)+", root) or {".", ".."} & set(root.split("/")):
            raise ValueError("must be the path of a node, like /otter/canal")
        return root

    def _contradictions(self) -> Iterator[str]:
        if self.kind == "zookeeper" and self.hosts is None:
            yield "kind zookeeper needs hosts; add hosts: h1:2181,h2:2181"
        if self.kind in ("file", "memory"):
            for key in ("hosts", "root"):
                if key in self.model_fields_set:
                    yield f"{key} belongs to kind: zookeeper; remove it, or change kind"
        if self.kind == "mixed" and self.hosts is None and "root" in self.model_fields_set:
            yield "root has no effect without hosts; remove it, or add hosts"
        if self.kind == "memory":
            for key in ("path", "permissions"):
                if key in self.model_fields_set:
                    yield f"{key} has no effect with kind: memory, which keeps nothing; remove it"

"""Checks the arguments of :func:`cdc.stream`, and opens the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdc.base.errors import UsageError
from cdc.config import DestinationConfig
from cdc.meta.state import check_name
from cdc.streaming.settings import FileStore, MemoryRing, make_config
from cdc.streaming.stream import DEFAULT_READER, Stream

_STORES: Mapping[Any, type[MemoryRing | FileStore]] = {"memory": MemoryRing, "file": FileStore}


def open_stream(
    source: str | Path | DestinationConfig | None,
    state: str | Path | None,
    readers: Sequence[str],
    store: MemoryRing | FileStore | str,
    *,
    follow: bool,
    arguments: Mapping[str, Any],
) -> Stream:
    """See :func:`cdc.stream`. ``arguments``: those of :func:`~cdc.streaming.settings.make_config`."""
    names = _names(readers)
    if not isinstance(store, MemoryRing | FileStore):
        if store not in _STORES:
            raise UsageError(
                f"store={store!r} is no kind of store",
                place="cdc.stream",
                remedy="Pass memory, file, a MemoryRing or a FileStore.",
            )
        store = _STORES[store]()
    if isinstance(store, FileStore) and state is None:
        raise UsageError("store='file' needs a folder", place="cdc.stream", remedy="Pass it as state.")
    config = make_config(source, **arguments)
    return Stream(config, store, state=None if state is None else Path(state), readers=names, follow=follow)


def _names(readers: Sequence[str]) -> tuple[str, ...]:
    names = (readers,) if isinstance(readers, str) else tuple(readers) or (DEFAULT_READER,)
    for name in names:
        check_name(name)
        if names.count(name) > 1:
            raise UsageError(f"readers names {name!r} twice", place="cdc.stream", remedy="Give each a name of its own.")
    return names

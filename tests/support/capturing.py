"""Capture beside what a test does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.decode import read


@contextmanager
def capturing(config: DestinationConfig) -> Iterator[None]:
    """Runs capture during the block. Raises its error."""
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="capture") as pool:
        running = pool.submit(Capture(config).run, stop)
        try:
            yield
        finally:
            stop.set()
            running.result(60)


@contextmanager
def capturing_from_now(config: DestinationConfig) -> Iterator[None]:
    """Runs capture during the block, after a first run has begun the store."""
    Capture(config).run(until_current=True)
    with capturing(config):
        yield


def stored_ids(config: DestinationConfig, table: str) -> list[int]:
    """Returns the column ``id`` of a table's changes, in the order in which the store has them."""
    return [n for batch in read(config.store.path, table=table) for n in batch.column("id").to_pylist()]

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TypeAlias

from cdc.base.errors import CdcError, CorruptStreamError, SourceUnavailableError
from cdc.config import DestinationConfig
from cdc.testing.source import FakeSource, Fault, History
from cdc.testing.source.check import find_problems
from cdc.testing.source.harness import SessionHarness

Configure: TypeAlias = Callable[..., DestinationConfig]


def inject(
    config: DestinationConfig, source: FakeSource, history: History, fault: Fault, piece: int, *, kill: bool
) -> None:
    """Connects with the fault, then without, and checks the store."""
    store = config.store.path
    shutil.rmtree(store, ignore_errors=True)
    harness = SessionHarness(config, source)
    case = f"{fault}, in pieces of {piece}{', killed' if kill else ''}"
    try:
        ended = harness.connect(history, fault, piece=piece)
        if ended is not None:
            assert isinstance(ended, SourceUnavailableError | CorruptStreamError), f"{case}: {ended!r}"
        if kill:
            killed = store.with_name("killed")
            shutil.rmtree(killed, ignore_errors=True)
            harness.copy_as_killed(killed)
            harness.close()
            shutil.rmtree(store)
            killed.rename(store)
            harness = SessionHarness(config, source)
        second_error = harness.connect(history)
        assert second_error is None, f"{case}: {second_error!r}"
    except CdcError as error:
        raise AssertionError(f"{case}: {error}") from error
    finally:
        harness.close()
    problems = find_problems(store, history)
    assert problems == [], case

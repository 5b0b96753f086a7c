"""Fixtures of the tests of replication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes masters, standbys and logs at the end of a test."""
    with ExitStack() as stack:
        yield stack

"""Work in threads, for what waits for a disk, a decoder or another process: the event loop must not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

_T = TypeVar("_T")


async def in_thread(run: Callable[[], _T], limiter: CapacityLimiter) -> _T:
    """Runs work in a thread, and returns its result. A caller that is cancelled goes on when the work has ended, so
    that a lock which it holds is held as long as the work runs."""
    work = asyncio.ensure_future(to_thread.run_sync(run, limiter=limiter))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # nobody else asks for it
        raise

"""The jobs that operators start, beside the steps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from cdc.config import DestinationConfig


class Jobs(Protocol):
    """The jobs. Implemented by ``cdc.lake.pipeline``, and by a fake in the tests."""

    def has_captured(self, config: DestinationConfig) -> bool: ...

    def snapshot(
        self, config: DestinationConfig, tables: Sequence[str] | None = None, *, progress: Any = None
    ) -> Sequence[Any]: ...

    def replay(
        self,
        config: DestinationConfig,
        tables: Sequence[str],
        *,
        from_: str | None = None,
        to: str | None = None,
        into: str | None = None,
        mode: str | None = None,
        progress: Any = None,
    ) -> Sequence[Any]: ...

    def verify(
        self, config: DestinationConfig, tables: Sequence[str] | None = None, *, progress: Any = None
    ) -> Any: ...

    def plan_snapshot(self, config: DestinationConfig, tables: Sequence[str]) -> Any: ...

    def plan_replay(
        self,
        config: DestinationConfig,
        tables: Sequence[str],
        *,
        from_: str | None = None,
        to: str | None = None,
        into: str | None = None,
        mode: str | None = None,
    ) -> Any: ...

    def maintain(
        self,
        config: DestinationConfig,
        tables: Sequence[str] = (),
        *,
        dry_run: bool = False,
        store_only: bool = False,
        vacuum: bool = True,
        progress: Any = None,
    ) -> dict[str, Any]: ...

    def stop(self) -> None: ...


def pipeline() -> Jobs:
    """Returns ``cdc.lake.pipeline``, imported only when a task runs, because DAG files are parsed often."""
    from cdc.lake import pipeline as module

    return cast("Jobs", module)

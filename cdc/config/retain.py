"""``store.retain`` and ``store.disk``: what leaves the store, and what happens when its disk fills up."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from cdc.config.values import DurationS, FilledText, Section, Whole


class RetainConfig(Section):
    """When segments of the store go, and who may hold them back."""

    acked_for: DurationS | None = 72 * 3600.0
    """Acked by every subscriber, and older; null: no age is enough."""
    unacked_for: DurationS | None = None
    """Older, whoever has not acked: a subscriber that lags so far is cut off. null: never."""
    max_bytes: Whole | None = Field(default=None, gt=0)
    """Above it acked segments go, whatever their age."""
    lost_after: DurationS = 24 * 3600.0
    """A subscriber that leaves a transaction lying for so long is named by an alarm."""
    wait_for: tuple[FilledText, ...] = ("apply",)
    """Subscribers that hold the store back even before they have read for the first time."""
    delete_at: tuple[int, ...] | None = None
    """Hours of the day, local time, in which segments go because of their age (RocketMQ's deleteWhen); null: any."""

    @field_validator("delete_at", mode="before")
    @classmethod
    def _hours(cls, value: Any) -> Any:
        if value is None:
            return None
        parts = str(value).split(";") if isinstance(value, str | int) and not isinstance(value, bool) else [""]
        hours = [int(part) for part in parts if re.fullmatch(r"\s*\d{1,2}\s*", part)]
        if len(hours) != len(parts) or max(hours, default=24) > 23:
            raise ValueError("is not an hour of the day; write it like '04', several as '04;16'")
        return tuple(hours)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.unacked_for is None:
            return self
        if self.acked_for is None or self.acked_for > self.unacked_for:
            kept = "null" if self.acked_for is None else f"{self.acked_for:g} s"
            raise ValueError(
                f"acked_for ({kept}) keeps what is acked longer than unacked_for ({self.unacked_for:g} s) keeps what "
                "is not; make acked_for the smaller one"
            )
        if self.lost_after >= self.unacked_for:
            raise ValueError(
                f"lost_after ({self.lost_after:g} s) must be less than unacked_for ({self.unacked_for:g} s), so that "
                "the alarm comes before a subscriber is cut off"
            )
        return self


class DiskConfig(Section):
    """Shares of the store's disk in use, by whomever, from which on something is done about it."""

    warn_ratio: float = Field(default=0.75, gt=0, le=1)
    clean_ratio: float = Field(default=0.85, gt=0, le=1)
    """Acked segments go, whatever their age."""
    stop_ratio: float = Field(default=0.90, gt=0, le=1)
    """Nothing more is written."""

    @model_validator(mode="after")
    def _rise(self) -> Self:
        if not self.warn_ratio <= self.clean_ratio <= self.stop_ratio:
            raise ValueError(
                f"warn_ratio {self.warn_ratio:g}, clean_ratio {self.clean_ratio:g} and stop_ratio {self.stop_ratio:g} "
                "must not fall: first the warning, then the cleaning, then the end of writing"
            )
        return self

"""Kinds of values in the configuration, and what all its sections have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(value: Any) -> Any:
    """``72h``, ``30s``, ``1.5d`` or a plain number of seconds."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError("is not a duration; write it like 30s, 15m, 72h or 7d")
        return float(match[1]) * _UNIT_S[match[2]]
    return value


def no_boolean(value: Any) -> Any:
    """``true`` is no number, though Python takes it for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _not_empty(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("must not be empty")
    return value


DurationS = Annotated[float, BeforeValidator(seconds), BeforeValidator(no_boolean), Field(gt=0)]
WaitS = Annotated[float, BeforeValidator(seconds), BeforeValidator(no_boolean), Field(ge=0)]
Whole = Annotated[int, BeforeValidator(no_boolean)]
FilledPath = Annotated[Path, BeforeValidator(_not_empty)]
FilledText = Annotated[str, BeforeValidator(_not_empty)]


class Section(BaseModel):
    """A part of the configuration: unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)

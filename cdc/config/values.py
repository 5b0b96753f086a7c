"""Value types of the configuration file: durations, sizes, addresses, and the base class of all sections.

:class:`Doc` carries what the reference says about a key beyond its docstring. :mod:`cdc.config.reference` renders it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, cast
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from cdc.base.addresses import parse_address
from cdc.base.errors import ConfigError
from cdc.config.secret_source import Secret

_DURATION = r"(\d+(?:\.\d+)?)\s*(s|m|h|d)"
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Doc:
    """Facts that the reference tells about a key beyond its description, its type and its default."""

    choices: Mapping[str, str] = field(default_factory=dict)
    """Each value that the key takes today, and its meaning. The description then ends where a list can follow it."""
    example: Any = None
    """A value for the example file, for a key without a default or whose default shows nothing."""
    only_with: str = ""
    """The setting that gives this key its effect; with another one the key is refused."""
    instead_of: str = ""
    """The key of the same section that this key replaces. Only one of them may be given."""


class Contradiction(NamedTuple):
    """A rule between sections that a configuration breaks."""

    problem: str
    remedy: str = ""


def require_http(url: str, *, otherwise: str, with_secrets: str, path: bool = False) -> SplitResult:
    """Returns the parts of an address of HTTP. ``path``: whether it may have a path and a query. Raises ValueError with
    the message ``otherwise`` for anything else, and with ``with_secrets`` if it holds a user or a password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(otherwise)
    if not path and (parts.path.strip("/") or parts.query):
        raise ValueError(otherwise)
    if parts.username is not None or parts.password is not None:
        raise ValueError(with_secrets)
    return parts


def seconds(value: Any) -> Any:
    """Converts a duration with a unit (``72h``, ``30s``, ``1.5d``) to seconds; leaves numbers as they are."""
    if isinstance(value, str):
        match = re.fullmatch(_DURATION, value.strip())
        if match is None:
            raise ValueError("is not a duration; write it like 30s, 15m, 72h or 7d")
        return float(match[1]) * _UNIT_S[match[2]]
    return value


def no_boolean(value: Any) -> Any:
    """Refuses ``true`` and ``false``, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _not_empty(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("must not be empty")
    return value


def below(folder: Path, path: Path) -> Path:
    """Takes a relative path from ``folder``, which is absolute."""
    return path if path.is_absolute() else Path(os.path.normpath(folder / path))


# The context of a validation is the configuration file, as an absolute path; without one paths stay as they are.
def _beside(path: Path, info: ValidationInfo) -> Path:
    return path if info.context is None else below(info.context.parent, path)


def _above(path: Path, info: ValidationInfo) -> Path:
    return path if info.context is None else below(info.context.parent.parent, path)


def _address(value: str) -> str:
    try:
        parse_address(value)
    except ConfigError:
        raise ValueError("is not an address; write host:port") from None
    return value


DURATION_PATTERN = f"^{_DURATION}$"


def _duration_schema(limit: Mapping[str, int]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "number", **limit}, {"type": "string", "pattern": DURATION_PATTERN}]})


DurationS = Annotated[
    float,
    BeforeValidator(seconds),
    BeforeValidator(no_boolean),
    Field(gt=0),
    _duration_schema({"exclusiveMinimum": 0}),
]
"""A duration above zero, in seconds."""
WaitS = Annotated[
    float, BeforeValidator(seconds), BeforeValidator(no_boolean), Field(ge=0), _duration_schema({"minimum": 0})
]
"""A duration that may be zero, in seconds."""
Whole = Annotated[int, BeforeValidator(no_boolean)]
FilledText = Annotated[str, BeforeValidator(_not_empty)]
FilePath = Annotated[Path, BeforeValidator(_not_empty), AfterValidator(_beside)]
"""A file. A relative path is taken from the folder of the configuration file."""
FolderPath = Annotated[Path, BeforeValidator(_not_empty), AfterValidator(_above)]
"""A folder or file of data. A relative path is taken from the folder above that of the configuration file."""
Command = Annotated[tuple[FilledText, ...], Field(min_length=1)]
"""A program and its arguments."""
AddressText = Annotated[str, BeforeValidator(_not_empty), AfterValidator(_address)]
"""A network address: ``host:port`` or ``[::1]:port``."""


class Section(BaseModel):
    """A section of the configuration file.

    Unknown keys are errors, and nothing changes after loading. A key's docstring is its description in the reference,
    the example and the file that ``cdc init`` writes, so it is written for users.
    """

    # Built when the whole file is checked: the schema of each section alone is not needed.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    def _contradictions(self) -> Iterator[str]:
        """Yields a message for each rule between keys that the section breaks. Sections override it. The first message
        becomes the error, so a rule may rely on those before it."""
        yield from ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for attribute in vars(type(self)).values():
            if isinstance(attribute, Secret):
                attribute.check(self)
        for contradiction in self._contradictions():
            raise ValueError(contradiction)
        return self


class SectionWithFolder(Section):
    """A section with the folder ``path``, which is missing where a server keeps it. Reading it then is an error, so
    that what needs the server's disk says so."""

    if not TYPE_CHECKING:  # type checkers would take every name for an attribute

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "path" and value is None:
                raise no_disk(super().__getattribute__("kind"))
            return value


def no_disk(kind: str) -> ConfigError:
    """Returns the error for work that needs the disk of a store or meta that has none here, by its kind."""
    if kind in ("memory", "mixed"):
        return ConfigError(
            f"this needs a store on a disk, and `cdc server` keeps this one in its memory (kind: {kind})",
            remedy="Read it with a client of Canal's protocol, such as cdc.connector; `cdc instance list` shows its "
            "state. For Delta tables, batches and histories use store.kind: file.",
        )
    return ConfigError(
        "this needs the disk of the store, which is on another machine (store.kind is server)",
        remedy="Do it where `cdc server` runs, with the configuration there.",
    )


if TYPE_CHECKING:
    Folder = Path
else:
    Folder = FolderPath | None
"""The ``path`` of a :class:`SectionWithFolder`: whoever gets a value gets a path."""


def no_folder() -> Path:
    """Returns the value of a ``path`` that is not given."""
    return cast(Path, None)

"""The configuration file that ``cdc init`` writes: the keys that a first file needs, with their descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdc.config.reference import VALUES_IN_WORDS, Template, default, render_yaml

_SHOWN = (
    "source.start",
    "tables.exclude",
    "tables.overrides",
    "store.kind",
    "store.segment_bytes",
    "store.flush",
    "store.retain.acked_for",
    "meta.kind",
    "batch.max_bytes",
    "batch.max_transactions",
    "batch.max_row_events",
    "batch.max_wait_s",
    "batch.lease_s",
    "apply.mode",
    "spark.master",
    "spark.remote",
    "spark.conf",
)
"""The keys that are written with their defaults."""
_EARLIER = ("earliest", "{file: binlog.000012, pos: 4}")


@dataclass(frozen=True)
class Answers:
    """The values that differ from one file to the next."""

    name: str
    url: str
    """Without the password."""
    password_in_environment: bool
    password_place: str
    """Name of the environment variable, or of the file beside this one."""
    server_id: int
    include: tuple[str, ...]
    target: str
    product: str
    has_row_metadata: bool
    """Whether the server's binlog names columns. If it does not, capture can only begin at ``now``."""


def render(answers: Answers) -> str:
    """Returns the text of the file."""
    values: dict[str, Any] = {path: default(path) for path in _SHOWN}
    values |= {
        "source.url": answers.url,
        f"source.password_{'env' if answers.password_in_environment else 'file'}": answers.password_place,
        "source.server_id": answers.server_id,
        "tables.include": list(answers.include),
        "store.path": f"./data/{answers.name}/store",
        "meta.path": f"./data/{answers.name}/meta",
        "apply.target": answers.target,
    }
    impossible = () if answers.has_row_metadata else _EARLIER
    return render_yaml(
        Template(
            values=values,
            head=(
                f"Destination {answers.name}: one source server, and what becomes of its changes.",
                f"`cdc check {answers.name}` examines these settings. docs/reference/settings.md lists every key.",
                VALUES_IN_WORDS,
            ),
            notes={
                "source": f"It was {answers.product} when this file was written.",
                "source.server_id": "This number was free when this file was written.",
            },
            without_choices=frozenset(("source.start", choice) for choice in impossible),
        )
    )

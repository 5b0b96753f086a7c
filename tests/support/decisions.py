"""The decisions of ``docs/decisions``: their parts, and the tables of contents in that folder's README.

``python -m tests.support.decisions`` writes the tables anew; a test fails while they are out of date.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
INDEX = FOLDER / "README.md"
SECTIONS = ["Context", "Decision", "Alternatives", "Consequences"]
AREAS = (
    "Source and capture",
    "The store and its copies",
    "Meta and batches",
    "Decoding",
    "Apply",
    "Schema changes",
    "Snapshots, replay and verification",
    "Runs and Airflow",
    "Spark",
    "Server, Canal and Kafka",
    "Configuration, names and secrets",
    "Tests and benchmarks",
)
"""The areas of decisions, in the order of the data."""
_BEGINNING = "## All decisions\n"
_HEADER = "| number | decision | date | status |\n|---|---|---|---|\n"


@dataclass(frozen=True)
class Record:
    """One decision as its file says it; parts that the file lacks are empty."""

    path: Path
    number: str
    title: str
    status: str
    date: str
    area: str
    sections: list[str]


def records() -> list[Record]:
    """All decisions, in the order of their numbers."""
    return [_record(path) for path in sorted(FOLDER.glob("[0-9]*.md"))]


def _record(path: Path) -> Record:
    text = path.read_text()

    def first(pattern: str) -> str:
        match = re.search(pattern, text, re.MULTILINE)
        return match[1] if match else ""

    return Record(
        path,
        first(r"\A# (\d{4}): "),
        first(r"\A# \d{4}: (.+)$"),
        first(r"^- \*\*Status\*\*: (.+)$"),
        first(r"^- \*\*Date\*\*: (.+)$"),
        first(r"^- \*\*Area\*\*: (.+)$"),
        re.findall(r"^## (.+)$", text, re.MULTILINE),
    )


def tables() -> str:
    """Returns a table for each area, with a row for each decision."""
    listed = records()
    parts = []
    for area in AREAS:
        rows = "".join(
            f"| [{record.number}]({record.path.name}) | {record.title} | {record.date} | {record.status} |\n"
            for record in listed
            if record.area == area
        )
        parts.append(f"### {area}\n\n{_HEADER}{rows}")
    return "\n".join(parts)


def page(text: str) -> str:
    """Returns the README with today's tables behind its prose."""
    return f"{text.partition(_BEGINNING)[0].rstrip()}\n\n{_BEGINNING}\n{tables()}"


if __name__ == "__main__":
    INDEX.write_text(page(INDEX.read_text()))

"""The decisions of ``docs/decisions``: their parts, and the table of contents in that folder's README.

``python -m tests.support.decisions`` writes the table anew; a test fails while it is out of date.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
INDEX = FOLDER / "README.md"
SECTIONS = ["Context", "Decision", "Alternatives", "Consequences"]
_HEADER = "| number | decision | date | status |\n|---|---|---|---|\n"


@dataclass(frozen=True)
class Record:
    """One decision as its file says it; parts that the file lacks are empty."""

    path: Path
    number: str
    title: str
    status: str
    date: str
    sections: list[str]


def records() -> list[Record]:
    """All decisions, in the order of their numbers."""
    return [_record(path) for path in sorted(FOLDER.glob("[0-9]*.md"))]


def _record(path: Path) -> Record:
    text = path.read_text()

    def first(pattern: str) -> str:
        found = re.search(pattern, text, re.MULTILINE)
        return found[1] if found else ""

    return Record(
        path,
        first(r"\A# (\d{4}): "),
        first(r"\A# \d{4}: (.+)$"),
        first(r"^- \*\*Status\*\*: (.+)$"),
        first(r"^- \*\*Date\*\*: (.+)$"),
        re.findall(r"^## (.+)$", text, re.MULTILINE),
    )


def table() -> str:
    """The table of contents, a row for each decision."""
    return _HEADER + "".join(
        f"| [{record.number}]({record.path.name}) | {record.title} | {record.date} | {record.status} |\n"
        for record in records()
    )


def page(text: str) -> str:
    """The README with today's table behind its prose."""
    return text.partition(_HEADER)[0].rstrip() + "\n\n" + table()


if __name__ == "__main__":
    INDEX.write_text(page(INDEX.read_text()))

"""The readers that a plan names are those that docs/reference/readers.md has tried."""

from __future__ import annotations

from pathlib import Path

from cdc.lake.migration.effects import MAPPING, READERS, VARIANT, WIDENING

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "readers.md"
ROWS = {
    MAPPING: "column mapping: renamed and dropped columns",
    WIDENING: "type widening: INT to BIGINT",
    VARIANT: "VARIANT",
}


def test_readers_are_those_of_the_page() -> None:
    lines = [line.strip("|").split("|") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line] for line in lines]
    header = next(line for line in table if line[0] == "feature")
    for feature, title in ROWS.items():
        row = next(line for line in table if line[0] == title)
        tried = dict(zip(header[2:], row[2:], strict=True))
        bad = {reader: cell.split(" ")[0].strip("*") for reader, cell in tried.items() if cell != "yes"}
        assert READERS[feature] == bad, feature

"""The picture of the folders of ``cdc`` in ``docs/concepts/architecture.md``, drawn from the import contract.

``python -m tests.support.folders`` draws it anew; a test fails while it is out of date.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "images" / "folders.svg"
CONTRACT = "the folders of cdc are layers"
_HIDDEN = {"__main__", "ready", "testing"}
"""Entries of the contract that are no part of the product's layout."""
_WIDTH, _ROW, _BOX, _GAP = 900, 34, 24, 10


def layers() -> list[list[str]]:
    """Returns the folders and modules of each layer, from the highest to the lowest."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = [contract for contract in contracts if contract["name"] == CONTRACT]
    rows = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
    return [row for row in rows if not _HIDDEN & {*row}]


def picture() -> str:
    """Returns the SVG: a row for each layer, and an arrow that points to what a folder may import."""
    rows = layers()
    height = len(rows) * _ROW + 20
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
            'role="img" aria-label="The folders of cdc from the commands down to base; each may import those below it">'
        ),
        "  <!-- Drawn by python -m tests.support.folders -->",
        "  <style>",
        "    text { font-family: Helvetica, Arial, sans-serif; font-size: 13.5px; fill: #1b2a33; text-anchor: middle }",
        "    .box { fill: #ffffff; stroke: #00695c; stroke-width: 1.4 }",
        "    .arrow { stroke: #37474f; stroke-width: 1.6; fill: none; marker-end: url(#head) }",
        "  </style>",
        (
            '  <defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L10 5L0 10z" fill="#37474f"/></marker></defs>'
        ),
        f'  <rect width="{_WIDTH}" height="{height}" rx="8" fill="#fbfdfd"/>',
        f'  <path class="arrow" d="M40 16V{height - 16}"/>',
        f'  <text transform="translate(26 {height // 2}) rotate(-90)">may import</text>',
    ]
    for number, row in enumerate(rows):
        widths = [8 * len(name) + 22 for name in row]
        left = (_WIDTH + 40 - sum(widths) - _GAP * (len(row) - 1)) / 2
        top = 10 + number * _ROW + (_ROW - _BOX) / 2
        for name, width in zip(row, widths, strict=True):
            parts.append(f'  <rect class="box" x="{left:g}" y="{top:g}" width="{width}" height="{_BOX}" rx="5"/>')
            parts.append(f'  <text x="{left + width / 2:g}" y="{top + 16.5:g}">{escape(name)}</text>')
            left += width + _GAP
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")

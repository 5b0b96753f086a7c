"""A console that shows control characters in texts rather than obey them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_OF_LAYOUT = (9, 10)
_ESCAPED = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(32), *range(127, 160))
    if code not in _OF_LAYOUT
}
"""The way in which control characters are shown; tabs and line ends belong to the layout."""


class PlainConsole(Console):
    """A console of Rich. Names and texts of the source may hold escape sequences, which would forge what a terminal
    shows."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(segment.text.translate(_ESCAPED), segment.style)

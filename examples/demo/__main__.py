"""``python -m examples.demo``: the whole loop, told step by step.

Environment: ``CDC_DEMO_SOURCE`` (mysql://user:password@host:port or mariadb://…) uses that server, in a database of its
own that is dropped at the end; ``CDC_DEMO_KEEP=1`` keeps everything running at the end even without a terminal;
``CDC_DEMO_DIR`` is the work folder (default ``demo`` in the repository).
Exit code 0 when the Delta tables are equal to SELECT's answer, 1 when not or when a step failed.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

from rich.markup import escape

from cdc.errors import CdcError
from examples.demo.play import Play
from examples.demo.screen import Screen
from examples.demo.site import SiteError
from examples.demo.stage import StageError


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Plays the demo; its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    screen = Screen()
    play = Play(screen)
    try:
        return play.run()
    except KeyboardInterrupt:
        screen.say("Stopped.")
        return 1
    except (StageError, SiteError, CdcError) as error:
        screen.say(f"[red]{escape(str(error))}[/red]")
        return 1
    finally:
        # A second Ctrl-C must not leave servers behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        play.clean_up()


if __name__ == "__main__":
    sys.exit(main())

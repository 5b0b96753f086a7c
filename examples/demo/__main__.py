"""``python -m examples.demo``: the whole loop, step by step.

Environment: ``CDC_DEMO_SOURCE`` (mysql://user:password@host:port or mariadb://…) uses that server, in a database of its
own that is dropped at the end; ``CDC_DEMO_KEEP=1`` keeps everything running at the end even without a terminal;
``CDC_DEMO_DIR`` is the work folder (default ``demo`` in the repository); ``CDC_DEMO_PICTURE=docs/images/demo.svg`` draws
what is printed.
Exit code 0 if the Delta tables equal SELECT's answer, 1 if they do not or a step failed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from rich.markup import escape

from cdc.base.errors import CdcError
from examples.demo.airflow import AirflowError
from examples.demo.run import Demo
from examples.demo.screen import Screen
from examples.demo.setup import SetupError


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Runs the demo and returns its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    picture = os.environ.get("CDC_DEMO_PICTURE")
    screen = Screen(Path(picture).absolute() if picture else None)
    demo = Demo(screen)
    try:
        return demo.run()
    except KeyboardInterrupt:
        screen.say("Stopped.")
        return 1
    except (SetupError, AirflowError, CdcError) as error:
        screen.say(f"[red]{escape(str(error))}[/red]")
        return 1
    finally:
        # A second Ctrl-C must not leave servers behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        demo.clean_up()


if __name__ == "__main__":
    sys.exit(main())

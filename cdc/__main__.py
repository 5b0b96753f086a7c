"""Runs the command ``cdc`` as ``python -m cdc``."""

from __future__ import annotations

import sys

from cdc.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

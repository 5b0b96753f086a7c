"""Runs benchmarks one after the other; each prints its table. ``make bench`` runs all.

python -m benchmarks [startup|capture|store|memory_ring|decode|apply|ways|snapshot|verify …]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = ("startup", "capture", "store", "memory_ring", "decode", "apply", "ways", "snapshot", "verify")


def main() -> int:
    chosen = sys.argv[1:] or list(NAMES)
    for name in chosen:
        if name not in NAMES:
            print(f"unknown benchmark {name!r}; known: {', '.join(NAMES)}", file=sys.stderr)
            return 2
    root = Path(__file__).parent.parent
    return max(
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=root, check=False).returncode
        for name in chosen
    )


if __name__ == "__main__":
    sys.exit(main())

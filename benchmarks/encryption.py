"""The price of encryption at rest: capture into an encrypted store, and decoding it, against the same without encryption.

CPU seconds are compared. Capture is ``cdc capture`` as a whole process, less its start-up, which is that of a run with one
transaction; decoding is the decoding of all rows of the table, in a process of its own that has done it once before. Both
stores are made of the same binlog, in turn.

    python -m benchmarks.encryption [--rows 1000000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import run
from benchmarks.capture import TowpathCapture, add_last, filled
from benchmarks.lines import FULL_ROWS, Measurement, Options

_DECODE = """
import sys, time
from pathlib import Path
from cdc.config import load
from cdc.decode import read
store = load(Path(sys.argv[1])).store.path
for _ in range(2):
    began, cpu = time.perf_counter(), time.process_time()
    rows = sum(len(batch) for batch in read(store, table="bench.orders"))
    took, used = time.perf_counter() - began, time.process_time() - cpu
print(rows, took, used)
"""
_KEY = bytes(range(32)).hex()


@dataclass(frozen=True)
class Sample:
    """One round of one store."""

    capture_s: float
    """CPU seconds of capture, without start-up."""
    decode_s: float
    """CPU seconds of decoding."""
    rows: int
    store_bytes: int
    peak_mb: float


def _round(capture: TowpathCapture) -> Sample:
    start_s = capture.start_up().cpu_s
    whole = capture.once()
    decoded = run([sys.executable, "-c", _DECODE, str(capture.folder / "conf" / "bench.yaml")])
    rows, _, used = decoded.output.split()
    segments = (capture.folder / "bench" / "store" / "segments").glob("*.binlog")
    return Sample(
        max(whole.cpu_s - start_s, 0.001),
        float(used),
        int(rows),
        sum(file.stat().st_size for file in segments),
        whole.peak_mb,
    )


def _encrypt(capture: TowpathCapture) -> None:
    """Adds a key to the configurations, and gives them other server ids: the server may still know the last replica."""
    conf = capture.folder / "conf"
    (conf / "store.key").write_text(_KEY)
    for file in conf.glob("*.yaml"):
        text = file.read_text()
        text = text.replace("store: {", "store: {encryption: {key_file: store.key}, ")
        file.write_text(text.replace("server_id: 47", "server_id: 48"))


def measure(rows: int, rounds: int) -> list[tuple[Sample, Sample]]:
    """Returns the rounds: without encryption, and with it."""
    with filled("large", rows) as (server, _), tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder:
        last = add_last(server)
        plain, secret = (TowpathCapture(server, Path(folder) / name, last) for name in ("plain", "secret"))
        _encrypt(secret)
        for each in (plain, secret):
            each.once()  # kernels compiled, caches warm
        return [(_round(plain), _round(secret)) for _ in range(rounds)]


def lines(options: Options, chosen: Collection[str]) -> Iterator[Measurement]:
    """The lines ``encrypted-capture`` and ``encrypted-decode``."""
    found = measure(options.rows, options.rounds)
    assert len({one.rows for pair in found for one in pair}) == 1
    for name, key in (("encrypted-capture", "capture_s"), ("encrypted-decode", "decode_s")):
        if name in chosen:
            pairs = [(getattr(plain, key), getattr(secret, key)) for plain, secret in found]
            yield Measurement(
                name,
                value=statistics.median(secret / plain for plain, secret in pairs),
                ours_s=statistics.median(secret for _, secret in pairs),
                other_s=statistics.median(plain for plain, _ in pairs),
                cpu_s=statistics.median(secret for _, secret in pairs),
                peak_mb=max(secret.peak_mb for _, secret in found),
                note="CPU seconds",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=FULL_ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found = measure(options.rows, options.rounds)
    table = Table(title=f"{found[0][0].rows:,} inserts, CPU seconds, medians of {options.rounds} rounds")
    for name in ("work", "plain s", "encrypted s", "price"):
        table.add_column(name, justify="right")
    for what, key in (("capture", "capture_s"), ("decode", "decode_s"), ("bytes of the store", "store_bytes")):
        pairs = [(getattr(plain, key), getattr(secret, key)) for plain, secret in found]
        table.add_row(
            what,
            f"{statistics.median(plain for plain, _ in pairs):,.2f}",
            f"{statistics.median(secret for _, secret in pairs):,.2f}",
            f"{statistics.median(secret / plain for plain, secret in pairs):.3f} ×",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()

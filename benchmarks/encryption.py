"""The price of encryption at rest: capture into an encrypted store, and decoding it, against the same without encryption.

CPU seconds are compared, the least of all rounds. Capture and decoding take place in a process of its own that has done
the same once before, so start-up does not count. Both stores are made of the same binlog, in turn.

    python -m benchmarks.encryption [--rows 1000000] [--rounds 3]
"""

from __future__ import annotations

import argparse
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
from cdc.testing.servers import PASSWORD

_CAPTURE = """
import shutil, sys, threading, time
from pathlib import Path
from cdc.capture import Capture
from cdc.config import load
config = load(Path(sys.argv[1]))
for _ in range(2):
    for folder in (config.store.path, config.meta.path):
        shutil.rmtree(folder, ignore_errors=True)
    cpu = time.process_time()
    Capture(config).run(threading.Event(), None, True)
    used = time.process_time() - cpu
print(used)
"""
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
    """CPU seconds of capture."""
    decode_s: float
    """CPU seconds of decoding."""
    rows: int
    store_bytes: int
    peak_mb: float


def _round(capture: TowpathCapture) -> Sample:
    conf = str(capture.folder / "conf" / "bench.yaml")
    captured = run([sys.executable, "-c", _CAPTURE, conf], BENCH_PASSWORD=PASSWORD)
    decoded = run([sys.executable, "-c", _DECODE, conf])
    rows, _, used = decoded.output.split()
    segments = (capture.folder / "bench" / "store" / "segments").glob("*.binlog")
    return Sample(
        float(captured.output),
        float(used),
        int(rows),
        sum(file.stat().st_size for file in segments),
        captured.peak_mb,
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


@dataclass(frozen=True)
class Price:
    """CPU seconds without encryption, and with it: the least of the rounds."""

    plain_s: float
    secret_s: float

    @property
    def ratio(self) -> float:
        return self.secret_s / self.plain_s


def prices(pairs: list[tuple[Sample, Sample]]) -> dict[str, Price]:
    """Returns the prices of capture and of decoding, by the names of their lines."""
    plain, secret = zip(*pairs, strict=True)
    return {
        f"encrypted-{name}": Price(
            min(getattr(sample, key) for sample in plain), min(getattr(sample, key) for sample in secret)
        )
        for name, key in (("capture", "capture_s"), ("decode", "decode_s"))
    }


def lines(options: Options, chosen: Collection[str]) -> Iterator[Measurement]:
    """The lines ``encrypted-capture`` and ``encrypted-decode``."""
    pairs = measure(options.rows, options.rounds)
    assert len({sample.rows for pair in pairs for sample in pair}) == 1
    for name, price in prices(pairs).items():
        if name in chosen:
            yield Measurement(
                name,
                value=price.ratio,
                ours_s=price.secret_s,
                other_s=price.plain_s,
                cpu_s=price.secret_s,
                peak_mb=max(secret.peak_mb for _, secret in pairs),
                note="CPU seconds, the least of the rounds",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=FULL_ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pairs = measure(options.rows, options.rounds)
    table = Table(title=f"{pairs[0][0].rows:,} inserts, CPU seconds, the least of {options.rounds} rounds")
    for name in ("work", "plain", "encrypted", "price"):
        table.add_column(name, justify="right")
    for line, price in prices(pairs).items():
        table.add_row(line, f"{price.plain_s:,.3f}", f"{price.secret_s:,.3f}", f"{price.ratio:.2f} ×")
    plain, secret = pairs[0]
    sizes = plain.store_bytes, secret.store_bytes
    table.add_row("bytes of the store", f"{sizes[0]:,}", f"{sizes[1]:,}", f"{sizes[1] / sizes[0]:.3f} ×")
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()

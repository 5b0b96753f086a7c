"""``cdc push`` to a real broker of Kafka on this machine: messages and rows per second of each format.

    python -m benchmarks.push [--rows 400000] [--kinds large,small] [--formats canal-json,canal-protobuf,debezium-json]

The store is captured before. "written" is the time in which the messages are made, without a broker. "pushed" is the
whole loop of the command: leases, messages, the brokers' acknowledgements, acks; "CPU" is what its process takes in
that. Broker and push share the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cdc.canal.mq.pusher import Pusher
from cdc.config import load
from cdc.config.mq import MqConfig
from cdc.testing.servers import Server

_FORMATS = "canal-json,canal-protobuf,debezium-json"


class _Nowhere:
    """A producer that sends nothing."""

    def begin(self) -> None: ...

    def send(self, messages: Any) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


def main() -> int:
    from benchmarks.capture import SMALL_STEP, TowpathCapture, filled

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=400_000, help="row changes of the large transactions")
    parser.add_argument("--kinds", default="large,small", help="large, small, or both")
    parser.add_argument("--formats", default=_FORMATS)
    options = parser.parse_args()
    table = Table(title="cdc push to one broker of Kafka on the same machine")
    for name in (
        "transactions",
        "format",
        "rows",
        "messages",
        "written, rows/s",
        "pushed, rows/s",
        "messages/s",
        "MB/s",
    ):
        table.add_column(name, justify="right")
    with Server("kafka") as broker:
        for kind in options.kinds.split(","):
            rows = options.rows if kind == "large" else options.rows // 4 // SMALL_STEP * SMALL_STEP
            with filled(kind, rows) as (server, _), tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder:
                TowpathCapture(server, Path(folder), None).once()
                config = load(Path(folder) / "conf" / "bench.yaml")
                for form in options.formats.split(","):
                    measured = []
                    for step in ("warm", "written", "pushed"):
                        mq = MqConfig(
                            servers=[broker.url],
                            topic=f"{kind}-{form}-{step}",
                            format=form,
                            subscriber=f"{form}-{step}",
                        )
                        mq_config = config.model_copy(update={"mq": mq})
                        pusher = Pusher(mq_config, sender=None if step == "pushed" else lambda _: _Nowhere())
                        begin, before = time.perf_counter(), time.process_time()
                        stats = pusher.run(until_empty=True)
                        measured.append((time.perf_counter() - begin, time.process_time() - before))
                    _, (written, _), (pushed, cpu) = measured
                    table.add_row(
                        kind,
                        form,
                        f"{stats.rows:,}",
                        f"{stats.messages:,}",
                        f"{stats.rows / written:,.0f}",
                        f"{cpu / stats.rows * 1e6:.1f}",
                        f"{stats.rows / pushed:,.0f}",
                        f"{stats.messages / pushed:,.0f}",
                        f"{stats.bytes / pushed / 1e6:.0f}",
                    )
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

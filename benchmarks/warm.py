"""Lines of warm sessions: batches of inserts, updates and single-row transactions, scattered updates, and a replay.

Both sides of a ratio run in turn, in the same rounds, and the median of the rounds' ratios counts. A first round, which
compiles and fills caches, is not counted. Every round has tables of its own, so that all of them do the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.accounting import Span, Stopwatch, Tree
from benchmarks.lines import Measurement, Options
from benchmarks.peers import Peer, Reading, debezium
from benchmarks.workload import LARGE_SERVER, apply, capture, count, create_table, destination, inserts, values

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.testing.servers import Server


@dataclass(frozen=True)
class _Round:
    captured: Span
    inserted: Span
    updated: Span
    own: Span
    """Spark's own Parquet to Delta."""
    read: Reading | None
    """Debezium reading the same inserts."""


def batches(options: Options, chosen: Collection[str]) -> Iterator[Measurement]:
    """The lines ``inserts``, ``updates``, ``binlog``, ``cpu`` and ``replay``: rounds of a table that is filled, then
    updated as a whole."""
    with ExitStack() as stack:
        server, config, tree = stack.enter_context(destination(options.cores, options=LARGE_SERVER))
        peer = debezium() if "binlog" in chosen else None
        updates = bool({"updates", "replay"} & set(chosen))
        rounds = [
            _round(config, server, options.rows, f"orders{number}", tree, updates, peer)
            for number in range(options.rounds + 1)
        ]
        replays = _replays(config, f"orders{options.rounds}", tree) if "replay" in chosen else []
        yield from _lines(options, chosen, rounds[1:], replays, peer, tree)


def _round(
    config: DestinationConfig, server: Server, rows: int, name: str, tree: Tree, updates: bool, peer: Peer | None
) -> _Round:
    server.execute(create_table(name))
    capture(config)
    apply(config)  # the table, empty
    server.execute("FLUSH BINARY LOGS", *inserts(name, rows))
    file, _ = last_file(server)
    with Stopwatch(tree) as captured:
        capture(config)
    with Stopwatch(tree) as inserted:
        apply(config)
    if (lake_rows := count(config, name)) != rows:
        raise RuntimeError(f"{name} has {lake_rows} rows instead of {rows}")
    reading = None if peer is None or peer.missing else peer.read(server, file, rows)
    with Stopwatch(tree) as own:
        _parquet_to_delta(config, name, own)
    updated = Stopwatch(tree)
    if updates:
        server.execute(f"UPDATE bench.{name} SET total = total + 1, note = CONCAT(note, '!')")
        capture(config)
        with updated:
            apply(config)
    return _Round(captured.span, inserted.span, updated.span, own.span, reading)


def last_file(server: Server) -> tuple[str, int]:
    """Returns the name and the size of the server's newest binlog file."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        name, size = cursor.fetchall()[-1][:2]
    return str(name), int(size)


def _parquet_to_delta(config: DestinationConfig, name: str, watch: Stopwatch) -> None:
    """Writes the table's rows as Parquet, and measures how Spark makes another Delta table from these files."""
    from cdc.base.targets import table_path
    from cdc.lake.runtime.session import acquire

    spark = acquire(config.spark).spark
    folder = Path(config.store.path).parent / "own"
    table = spark.read.format("delta").load(table_path(config.apply.target, "bench", name))
    table.write.mode("overwrite").parquet(str(folder / "parquet"))
    with watch:  # only this counts
        spark.read.parquet(str(folder / "parquet")).write.format("delta").mode("overwrite").save(str(folder / "delta"))


def _replays(config: DestinationConfig, name: str, tree: Tree) -> list[Span]:
    from cdc.lake import pipeline

    spans = []
    for _ in range(2):
        with Stopwatch(tree) as watch:
            pipeline.replay(config, [f"bench.{name}"])
        spans.append(watch.span)
    return spans


def _lines(
    options: Options,
    chosen: Collection[str],
    rounds: list[_Round],
    replays: list[Span],
    peer: Peer | None,
    tree: Tree,
) -> Iterator[Measurement]:
    own_s = median([turn.own.seconds for turn in rounds])
    for name, spans in (
        ("inserts", [turn.inserted for turn in rounds]),
        ("updates", [turn.updated for turn in rounds]),
    ):
        if name in chosen:
            yield Measurement(
                name,
                value=median([span.seconds / turn.own.seconds for span, turn in zip(spans, rounds, strict=True)]),
                ours_s=median([span.seconds for span in spans]),
                other_s=own_s,
                cpu_s=median([span.cpu_s for span in spans]),
                peak_mb=tree.peak_mb(*spans),
            )
    whole_s = [turn.captured.seconds + turn.inserted.seconds for turn in rounds]
    cpu_s = [turn.captured.cpu_s + turn.inserted.cpu_s for turn in rounds]
    peak_mb = tree.peak_mb(*(span for turn in rounds for span in (turn.captured, turn.inserted)))
    if "binlog" in chosen:
        assert peer is not None
        reads = [turn.read for turn in rounds if turn.read is not None]
        ratios = [ours / reading.seconds for ours, reading in zip(whole_s, reads, strict=False)]
        yield Measurement(
            "binlog",
            value=median(ratios) if ratios else None,
            ours_s=median(whole_s),
            other_s=median([reading.seconds for reading in reads]) if reads else None,
            cpu_s=median(cpu_s),
            peak_mb=peak_mb,
            note=f"capture {median([turn.captured.seconds for turn in rounds]):.2f} s; the peer from its first to its last row",
            skipped=peer.missing,
        )
    if "cpu" in chosen:
        value = median(cpu_s) * 1e6 / options.rows
        yield Measurement("cpu", value=value, ours_s=median(whole_s), cpu_s=median(cpu_s), peak_mb=peak_mb)
    if "replay" in chosen:
        first_s = rounds[-1].inserted.seconds + rounds[-1].updated.seconds
        best = min(replays, key=lambda span: span.seconds)
        yield Measurement(
            "replay",
            value=first_s / best.seconds,
            ours_s=best.seconds,
            other_s=first_s,
            cpu_s=best.cpu_s,
            peak_mb=tree.peak_mb(*replays),
            note="the better of two",
        )


# --- single-row transactions -----------------------------------------------------------------------------------------

TABLES = 10
_PATTERN = "IUUDUIUDUU"
"""Two inserts, six updates and two deletes, in the order in which each table gets them."""


def transactions(options: Options, _: Collection[str]) -> Iterator[Measurement]:
    """The line ``transactions``. The tables are full before. A tenth of the transactions warms up, twice."""
    each = TABLES * len(_PATTERN)
    steps = max(1, options.rows // each)
    before = max(1, steps // 10)
    kept, deleted = options.rows // 20 + 1, 2 * (steps + 2 * before)
    with ExitStack() as stack:
        server, config, tree = stack.enter_context(destination(options.cores, options=LARGE_SERVER))
        for number in range(TABLES):
            server.execute(create_table(f"t{number}"), *inserts(f"t{number}", kept + deleted, each=50_000))
        server.execute(_procedure(kept))
        capture(config)
        apply(config)
        done = 0
        for count_of_steps in (before, before, steps):
            server.execute(f"CALL bench.steps({done}, {count_of_steps})")
            done += count_of_steps
            with Stopwatch(tree) as captured:
                capture(config)
            with Stopwatch(tree) as applied:
                apply(config)
        rows = count(config, "t3")
        if rows != kept + deleted:  # as many were inserted as were deleted
            raise RuntimeError(f"t3 has {rows} rows instead of {kept + deleted}")
        seconds = captured.span.seconds + applied.span.seconds
        yield Measurement(
            "transactions",
            value=steps * each / seconds,
            ours_s=seconds,
            cpu_s=captured.span.cpu_s + applied.span.cpu_s,
            peak_mb=tree.peak_mb(captured.span, applied.span),
            note=f"capture {captured.span.seconds:.2f} s, one round",
        )


def _procedure(kept: int) -> str:
    """Returns a procedure with a loop of a hundred transactions, ten for each table. It updates rows that have ids up
    to ``kept``, and deletes those behind, each once."""
    statements = []
    for step, kind in enumerate(_PATTERN):
        nth = _PATTERN[:step].count(kind)
        for number in range(TABLES):
            table = f"bench.t{number}"
            if kind == "I":
                statements.append(f"INSERT INTO {table} SELECT {values('i')}")
            elif kind == "U":
                at = f"1 + (i * 7919 + {nth * 104729 + number}) % {kept}"
                statements.append(f"UPDATE {table} SET total = total + 1 WHERE id = {at}")
            else:
                statements.append(f"DELETE FROM {table} WHERE id = {kept + 1 + nth} + 2 * i")
    body = "; ".join(statements)
    return (
        "CREATE PROCEDURE bench.steps(first INT, n INT) BEGIN DECLARE i INT DEFAULT first; WHILE i < first + n DO "
        f"{body}; SET i = i + 1; END WHILE; END"
    )


# --- scattered updates -----------------------------------------------------------------------------------------------


def scattered(options: Options, _: Collection[str]) -> Iterator[Measurement]:
    """The line ``scattered``: the same number of updates, evenly spread over a large and over a small table. Both may have
    deletion vectors; whether their rows are marked is what the product chooses."""
    sizes = {"large": 5 * options.rows, "small": options.rows // 2}
    changed = options.rows // 100
    with ExitStack() as stack:
        allowed = destination(options.cores, options=LARGE_SERVER, more=", deletion_vectors: true")
        server, config, tree = stack.enter_context(allowed)
        for name, rows in sizes.items():
            server.execute(create_table(name))
            for first in range(1, rows + 1, options.rows):
                server.execute(*inserts(name, min(options.rows, rows + 1 - first), first, each=50_000))
                capture(config)
                apply(config)
        spans: dict[str, list[Span]] = {name: [] for name in sizes}
        for number in range(options.rounds + 1):
            for name, rows in sizes.items():
                every = rows // changed
                server.execute(f"UPDATE bench.{name} SET total = total + 1 WHERE id % {every} = {number % every}")
                capture(config)
                with Stopwatch(tree) as watch:
                    apply(config)
                if number:
                    spans[name].append(watch.span)
        large, small = spans["large"], spans["small"]
        yield Measurement(
            "scattered",
            value=median([large_span.seconds / other.seconds for large_span, other in zip(large, small, strict=True)]),
            ours_s=median([span.seconds for span in large]),
            other_s=median([span.seconds for span in small]),
            cpu_s=median([span.cpu_s for span in large]),
            peak_mb=tree.peak_mb(*large),
            note="; ".join(f"{name}: {_way(config, name)}" for name in sizes),
        )


def _way(config: DestinationConfig, name: str) -> str:
    """Returns what the last MERGE of a table did with the rows that it changed."""
    from deltalake import DeltaTable

    from cdc.base.targets import table_path

    metrics = DeltaTable(table_path(config.apply.target, "bench", name)).history(1)[0]["operationMetrics"]
    marks = sum(int(metrics.get(f"numTargetDeletionVectors{word}", 0)) for word in ("Added", "Updated"))
    return "rows marked" if marks else "files rewritten"

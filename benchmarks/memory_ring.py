"""The memory ring: transactions per second through put, get and ack.

    python benchmarks/memory_ring.py [--transactions 50000] [--repeats 3]

*One thread* puts a list, gets a batch of the same size, and acks it, which measures the ring itself. *Two threads*: one
puts, the other gets and acks, and each waits when the ring is full or empty. Lists of one are the worst case; capture
puts lists of 64 and more. The transactions are small (an INSERT of three rows, five events) and made before the
measurement. Numbers are medians of several repeats, in wall-clock time.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from cdc.event_store.memory_store import BatchMode, MemoryStore
from cdc.event_store.transaction import Transaction
from cdc.testing.transactions import make_transactions

LISTS = (1, 64, 1024)
Way = Callable[[list[Transaction], int, BatchMode], int]


def _store(batch_mode: BatchMode, made: list[Transaction]) -> tuple[MemoryStore, int]:
    """Returns a ring of the default size, and how many units of a batch size a transaction takes (rounded up)."""
    store = MemoryStore(batch_mode=batch_mode, buffer_unit_bytes=1024)
    each = made[0].events if batch_mode == "itemsize" else -(-max(t.size_bytes for t in made) // 1024)
    return store, each


def one_thread(made: list[Transaction], length: int, batch_mode: BatchMode) -> int:
    """Passes all transactions through a store, and returns how many were acked."""
    store, each = _store(batch_mode, made)
    done = 0
    for n in range(0, len(made), length):
        store.put(made[n : n + length])
        while (events := store.try_get(length * each)).ack is not None:
            done += len(events.transactions)
            store.ack(events.ack)
    store.close()
    return done


def two_threads(made: list[Transaction], length: int, batch_mode: BatchMode) -> int:
    """Does the same with puts in another thread."""
    store, each = _store(batch_mode, made)

    def put() -> None:
        for n in range(0, len(made), length):
            store.put(made[n : n + length])

    thread = threading.Thread(target=put)
    thread.start()
    done = 0
    while done < len(made):
        events = store.get(length * each, timeout_s=0.01)
        if events.ack is not None:
            done += len(events.transactions)
            store.ack(events.ack)
    thread.join()
    store.close()
    return done


def rate(way: Way, made: list[Transaction], length: int, batch_mode: BatchMode, repeats: int) -> float:
    """Returns the median transactions per second."""
    rates = []
    for _ in range(repeats):
        fresh = [replace(transaction) for transaction in made]  # a transaction remembers its position in a store
        start = time.perf_counter()
        done = way(fresh, length, batch_mode)
        rates.append(done / (time.perf_counter() - start))
        if done != len(made):
            raise SystemExit(f"acked {done} transactions instead of {len(made)}")
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    console = Console()
    transactions = make_transactions(args.transactions)
    table = Table("batch mode", "list and batch", "one thread, transactions/s", "two threads, transactions/s")
    modes: tuple[BatchMode, ...] = ("itemsize", "memsize")
    for batch_mode in modes:
        for length in LISTS:
            console.print(f"{batch_mode}, {length:,} at a time …")
            rates = [rate(way, transactions, length, batch_mode, args.repeats) for way in (one_thread, two_threads)]
            table.add_row(batch_mode, f"{length:,}", *(f"{each:,.0f}" for each in rates))
    console.print(table)


if __name__ == "__main__":
    main()

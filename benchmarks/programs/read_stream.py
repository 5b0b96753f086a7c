"""Reads a binlog with ``cdc.stream``, counts its rows, prints the seconds from the first to the last one, and ends.

Arguments: what to make of the rows (``dicts``, or ``arrow``), the store (``memory`` or ``file``), host, port, user,
password, file, number of rows. Each transaction is acked, and its cursor is in a file.
"""

from __future__ import annotations

import sys
import tempfile
import time

import cdc


def main() -> None:
    form, store, host, port, user, password, file, expected = sys.argv[1:9]
    rows, began = 0, 0.0
    with (
        tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder,
        cdc.stream(
            f"mariadb://{user}@{host}:{port}",
            password=password,
            start={"file": file, "pos": 4},
            state=folder,
            store=store,
            follow=False,
        ) as stream,
    ):
        for transaction in stream:
            if form == "arrow":
                rows += sum(table.num_rows for table in transaction.tables().values())
            else:
                for change in transaction.changes:
                    if change.op != "ddl":
                        _ = change.before, change.after
                        rows += 1
            transaction.ack()
            began = began or time.perf_counter()
            if rows >= int(expected):
                break
        seconds = time.perf_counter() - began
    if rows < int(expected):
        raise SystemExit(f"the binlog has {rows} rows instead of {expected}")
    print(seconds)


if __name__ == "__main__":
    main()

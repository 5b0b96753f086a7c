"""Reads a binlog with mysql-replication, counts its rows, prints the seconds from the first to the last one, and ends.

Arguments: host, port, user, password, file, number of rows.
"""

from __future__ import annotations

import sys
import time

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent


def main() -> None:
    host, port, user, password, file, expected = sys.argv[1:7]
    stream = BinLogStreamReader(
        connection_settings={"host": host, "port": int(port), "user": user, "password": password},
        server_id=9914,
        log_file=file,
        log_pos=4,
        resume_stream=True,
        blocking=False,
        is_mariadb=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    rows, began = 0, 0.0
    for event in stream:
        rows += len(event.rows)
        began = began or time.perf_counter()
        if rows >= int(expected):
            break
    stream.close()
    if rows < int(expected):
        raise SystemExit(f"the binlog has {rows} rows instead of {expected}")
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main()

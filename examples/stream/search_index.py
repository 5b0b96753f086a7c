"""Keeps an index of customers by name, here a JSON file, level with a table.

    CDC_SOURCE_PASSWORD=… python search_index.py mysql://cdc@db.example:3306 'shop\\.customers' ./state ./index.json

The index is replaced as a whole, and acked afterwards. A transaction that is applied twice leaves the same index, so
the program may be killed at any moment. Ctrl-C ends it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import cdc
from cdc.base.errors import CdcError
from cdc.streaming import Change, Statement


def apply(changes: Iterable[Change | Statement], index: dict[str, str]) -> None:
    """Applies the changes of one transaction: the index has the name of each id."""
    for change in changes:
        before, after = change.before, change.after  # None both: a statement
        if after is not None:
            index[str(after["id"])] = after["name"]
        elif before is not None:
            index.pop(str(before["id"]), None)


def main() -> None:
    url, tables, state, path = sys.argv[1:]
    file = Path(path)
    index: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    try:
        with cdc.stream(url, password=os.environ.get("CDC_SOURCE_PASSWORD"), tables=tables, state=state) as stream:
            print("reading", flush=True)
            for transaction in stream:
                apply(transaction.changes, index)
                beside = file.with_suffix(".new")
                beside.write_text(json.dumps(index, sort_keys=True))
                beside.replace(file)
                transaction.ack()
    except KeyboardInterrupt:
        pass
    except CdcError as error:
        sys.exit(f"{error}\n{'Starting again may help.' if error.retryable else 'Change that first.'}")


if __name__ == "__main__":
    main()

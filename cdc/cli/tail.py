"""``cdc tail``: changes as they come."""

from __future__ import annotations

import os
import select
import sys
import time
from enum import StrEnum
from typing import Annotated

import typer

from cdc.base.errors import StorageError, UsageError
from cdc.base.targets import split_table
from cdc.cli.common import Destination, SourceValues, load, say
from cdc.client import open_meta
from cdc.config import DestinationConfig
from cdc.lake.rows.row_keys import RowKey
from cdc.store.reader.points import find_point
from cdc.store.reader.store import Store
from cdc.watch.tail.changes import ChangeChoice
from cdc.watch.tail.follow import StoreFollower
from cdc.watch.tail.run import Tail

_EARLIEST = "earliest"
_WRITE_BYTES = 1 << 18
_LOOK_AT_CAPTURE_S = 5.0


class RowOperation(StrEnum):
    insert = "insert"
    update = "update"
    delete = "delete"
    ddl = "ddl"


def tail(
    ctx: typer.Context,
    dest: Destination = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="DB.TABLE", help="Only changes of this table; may be repeated."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Only changes of the row with this key: its value, a=1,b=x for several columns, or a JSON object. "
            "Needs one --table; may be repeated.",
        ),
    ] = None,
    op: Annotated[
        list[RowOperation] | None,
        typer.Option("--op", metavar="insert|update|delete|ddl", help="Only changes of this kind; may be repeated."),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="P",
            help="Begin after P instead of at the end: a seq, a time, a GTID or GTID set, or earliest for all that the "
            "store has.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for further changes, or end with the last one.")
    ] = True,
    source_values: SourceValues = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object on a line for each change.")] = False,
) -> None:
    """Print changes as they come: inserts, updates, deletes, DDL statements.

    Reads the store, or the server of `store.kind: server`, and moves no cursor. Ends with Ctrl-C. Columns are shown as
    the lake has them: dropped ones are missing, and hashed or masked ones hashed or masked.
    """
    config = load(ctx, dest)
    table = None if table is None else [config.tables.name(name) for name in table]
    _require_tables(config, table or [])
    if not follow and from_ is None:
        raise UsageError(
            "--no-follow ends with the last change, and without --from that is where it begins",
            remedy="Add --from with a seq, a time, a GTID, or earliest.",
        )

    source = open_meta(config).source()
    follower = StoreFollower(config, None if source is None else source.base_name)
    reader = follower.reader
    if not reader.exists():
        raise UsageError("there is no store yet", place=reader.place, remedy="Start `cdc capture` first.")
    last_seq = reader.last_seq() or 0
    follower.seq = _start(reader, from_, last_seq)
    choice = ChangeChoice(
        None if table is None else frozenset(table),
        _keys(config, reader, table or [], key or []),
        None if op is None else frozenset(operation.value for operation in op),
    )
    _tell_unknown(reader, table or [])
    running = Tail(
        config,
        follower,
        choice,
        as_json=as_json,
        colours=_has_colours(),
        source_values=source_values,
        remark=say,
    )
    output = _Output()
    try:
        if not follow:
            for part in running.output(until_seq=last_seq):
                if not output.write(part):
                    return
            return
        capture = _CaptureWatch(reader)
        while not output.is_closed(follower.poll_s):
            capture.look()
            if follower.has_grown():
                for part in running.output():
                    if not output.write(part):
                        return
    except KeyboardInterrupt:
        output.drop()  # the way that this command is meant to end


# --- what is wanted


def _require_tables(config: DestinationConfig, names: list[str]) -> None:
    for name in names:
        split_table(name)
        if not config.tables.includes_name(name):
            raise UsageError(
                f"the table {name} is not captured",
                place=str(config.file),
                remedy="Correct --table, or add the table to tables.include.",
            )


def _tell_unknown(reader: Store, names: list[str]) -> None:
    schemas = reader.newest_schemas()
    names_known = {*reader.table_names(), *([] if schemas is None else schemas[1].tables)}
    for name in names:
        if name not in names_known:
            say(f"there is no table {name} yet; its changes are shown once it is there")


def _keys(config: DestinationConfig, reader: Store, names: list[str], texts: list[str]) -> tuple[RowKey, ...]:
    if not texts:
        return ()
    if len(names) != 1:
        raise UsageError("--key names rows of one table", remedy="Name it with --table DB.TABLE.")

    schemas = reader.newest_schemas()
    definition = None if schemas is None else schemas[1].tables.get(names[0])
    if definition is None:
        raise UsageError(
            "the store does not know its columns, which --key needs",
            place=f"table {names[0]}",
            remedy="Leave out --key, or wait until capture has seen the table.",
        )
    keys = config.table_apply(names[0]).keys
    return tuple(RowKey.parse(text, names[0], definition, keys) for text in texts)


def _start(reader: Store, text: str | None, last_seq: int) -> int:
    """Returns the seq after which to begin."""
    if text is None:
        return last_seq
    if text.strip() == _EARLIEST:
        return reader.removed_seq()

    return find_point(reader, text, say)


# --- output


def _has_colours() -> bool:
    """Whether standard output is a terminal that shows colours, and nobody has asked for none (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _CaptureWatch:
    """Tells when nothing can come because capture is not running."""

    def __init__(self, reader: Store) -> None:
        self._reader = reader
        self._running = True
        self._next = 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK_AT_CAPTURE_S
        state = self._reader.capture_state()
        running = state is not None and state.running
        if running != self._running:
            say("capture runs again" if running else "capture is not running; changes come once it runs")
            self._running = running


class _Output:
    """Standard output, written without a buffer, so that an interrupt leaves nothing behind that has to be written."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._poll: select.poll | None = None
        try:
            self._fd = sys.stdout.fileno()
        except (OSError, ValueError):  # it is captured by a test
            self._fd = -1
        else:
            self._poll = select.poll()
            self._poll.register(self._fd, 0)  # tells only that the other end was closed

    def is_closed(self, wait_s: float) -> bool:
        """Waits, and returns whether nobody reads any more: then nothing would ever be written again."""
        if self._poll is None:
            time.sleep(wait_s)
            return False
        return bool(self._poll.poll(wait_s * 1000))

    def write(self, data: memoryview | bytes) -> bool:
        """Writes everything. Returns False if the reader has closed the pipe, as ``| head`` does."""
        view = memoryview(data)
        try:
            while len(view):
                if self._fd < 0:
                    sys.stdout.buffer.write(view)
                    break
                view = view[os.write(self._fd, view[:_WRITE_BYTES]) :]
        except BrokenPipeError:
            return False
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror or error}", place="standard output") from None
        return True

    def drop(self) -> None:
        """Ends a line of a terminal that Ctrl-C has begun."""
        if self._fd >= 0 and os.isatty(self._fd):
            os.write(self._fd, b"\n")

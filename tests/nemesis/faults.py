"""What may befall a destination so that going on as if nothing had happened would lose or invent data.

A fault is struck when the lake equals the source. Afterwards the commands of its probe either bring the lake to the
source's state, or one of them is refused with an error of the listed classes whose message names what happened.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType

from cdc.batches.subscribers import accept_tables
from cdc.commands.batch import table_record
from cdc.errors import (
    CdcError,
    CutOffError,
    IdentityError,
    SourceRefusedError,
    StorageError,
    TargetError,
    UnsupportedDdlError,
)
from tests.nemesis.workload import APPEND
from tests.nemesis.world import World

Probe = Literal["level", "apply"]


@dataclass(frozen=True)
class Refusal:
    """An error that is an answer to a fault."""

    error: type[CdcError]
    words: str
    """A regular expression that must match in the message."""

    def allows(self, error: CdcError) -> bool:
        return isinstance(error, self.error) and re.search(self.words, str(error)) is not None


@dataclass(frozen=True)
class Fault:
    """One thing that may befall a destination."""

    strike: Callable[[World], None]
    refusals: tuple[Refusal, ...]
    way_out: Callable[[World], None]
    """What the documentation says to do after the refusal; then capture and apply reach the source's state."""
    probe: Probe = "level"
    """The commands that are tried: capture and apply, or apply alone."""
    must_refuse: bool = True
    """The data that are gone cannot be had again, so that nothing but a refusal is right."""
    of_source: bool = False
    """It is the source that is another: nothing of it may reach the lake."""

    @property
    def name(self) -> str:
        return self.strike.__name__


# ------------------------------------------------------------ ways out


def new_destination(world: World) -> None:
    """A new destination of the same tables, from the source's first binlog file on, or of new tables where that file
    or the former tables are gone."""
    source = world.source
    if source.whole and source.files()[0][0].endswith(".000001"):
        world.say("a new destination, from the first binlog file on")
        world.begin()
        return
    world.say("a new destination for new tables")
    source.begin(f"{source.workload.database}x", f"{source.workload.seed} again")
    world.begin()
    world.work()


def accept_gap(world: World) -> None:
    """``cdc batch accept-gap``: the changelog lacks the changes of the gap for good; in the other tables a later change
    of the same rows makes them good."""
    world.say("the gap is accepted")
    world.service().accept_beginning()
    world.accepted.add(APPEND)


def former_store_or_accepted_gap(world: World) -> None:
    world.dice.choice((former_store, accept_gap))(world)


def new_destination_or_accepted_loss(world: World) -> None:
    """A new destination; or, for a mirror, ``cdc batch accept-gap --table``: it is made anew, and filled by changes."""
    if world.struck == APPEND or world.dice.random() < 0.5:
        new_destination(world)
        return
    name = f"{world.source.workload.database}.{world.struck}"
    world.say(f"the loss of {name} is accepted")
    accept_tables(world.service().meta, "apply", {name: table_record(world.config, name)})


# ------------------------------------------------------------ the source


def reset_and_grown(world: World) -> None:
    """RESET, and the new history grows beyond where the old one ended."""
    world.settle()
    end = world.source.end()
    world.say(f"RESET at {end}, and growth beyond")
    world.source.whole = False
    world.source.reset()
    world.source.grow_past(end)
    world.source.workload.touch()


def reset_and_repeated(world: World) -> None:
    """RESET, and the same statements with other values: the old end is the border of an event again."""
    world.settle()
    world.say("RESET, and the same statements again, with other values, and more")
    actions = list(world.source.workload.history.actions)
    world.source.start_over()
    world.source.workload.repeat(actions)
    world.source.workload.touch()


def restored(world: World) -> None:
    """The source goes back to a copy that lacks what was captured since, and goes on in another way."""
    world.settle()
    world.say("the source is copied")
    copy = world.source.copy()
    world.settle()
    end = world.source.end()
    world.say(f"the source is restored from the copy, and grows beyond {end}")
    world.source.restore(copy)
    world.source.workload.salt += 1
    world.source.workload.touch()
    if world.dice.random() < 0.5:
        world.source.grow_past(end)


def rebuilt(world: World) -> None:
    """The source is set up anew at the same port, with fresh data."""
    world.settle()
    end = world.source.end()
    world.say("the source is rebuilt at its port, with the same tables, empty")
    world.source.rebuild()
    world.source.workload.run(3)
    if world.dice.random() < 0.5:
        world.source.grow_past(end)
    world.source.workload.touch()


def switched(world: World) -> None:
    """Another server stands at the source's address: its history has the same shape, and other values."""
    world.settle()
    actions = list(world.source.workload.history.actions)
    same = world.dice.random() < 0.7
    world.say(f"another server at the same address, {'with the same' if same else 'with another'} UUID")
    world.source.rebuild(same_identity=same)
    world.source.workload.repeat(actions)
    world.source.workload.touch()


def purged(world: World) -> None:
    """The source deletes binlog files that were not captured yet."""
    world.settle()
    world.say("changes in two binlog files, of which the source purges the first before it was captured")
    world.source.workload.flush()
    world.source.workload.touch()
    world.source.workload.flush()
    world.source.workload.touch()
    world.source.purge()


def flipped(world: World) -> None:
    """A bit of a large transaction is wrong in the source's file."""
    world.settle()
    rows = 40
    world.say(f"one transaction of {rows} large rows, with a wrong bit near its end in the source's file")
    world.source.workload.large(rows)
    world.source.flip()


def mend_flipped(world: World) -> None:
    stored = sum(file.stat().st_size for file in world.store.rglob("*") if file.is_file())
    assert stored < 20_000_000, f"the store has grown to {stored} bytes by reading 2.4 MB"
    world.say("the source's file is mended")
    world.source.flip()


# ------------------------------------------------------------ store and meta


def unmounted_store(world: World) -> None:
    """The folder of the store is not there, as on another machine or with a disk that is not mounted."""
    world.settle()
    world.source.workload.touch()
    world.say("the store is moved away")
    world.store.rename(world.store.with_suffix(".away"))


def mount(world: World) -> None:
    for path in (world.store, world.meta):
        away = path.with_suffix(".away")
        if away.exists():
            world.say(f"the {path.name} is put back")
            shutil.rmtree(path, ignore_errors=True)
            away.rename(path)


def store_begun_anew(world: World) -> None:
    """The store is lost, and capture begins anew at the source's present, behind changes that nobody has read."""
    world.settle()
    world.source.workload.touch()
    world.say("the store is removed, and source.start says now")
    world.store.rename(world.store.with_suffix(".away"))
    world.configure("now")
    world.capture()
    world.source.workload.touch()


def both_begun_anew(world: World) -> None:
    """Store and meta are lost, and capture begins anew behind changes that nobody has read."""
    world.settle()
    world.source.workload.touch()
    world.say("store and meta are removed, and source.start says now")
    world.store.rename(world.store.with_suffix(".away"))
    world.meta.rename(world.meta.with_suffix(".away"))
    world.configure("now")
    world.capture()
    world.source.workload.touch()


def former_store(world: World) -> None:
    """The store as it was before it was lost."""
    world.configure("{file: binlog.000001, pos: 4}")
    mount(world)


def store_lost_and_reset(world: World) -> None:
    """The store is lost, and the source's history is another one: what capture reads anew is not what was applied."""
    world.settle()
    end = world.source.end()
    world.say(f"the store is removed; RESET at {end}, and growth beyond")
    shutil.rmtree(world.store)
    world.source.whole = False
    world.source.reset()
    if world.dice.random() < 0.7:
        world.source.grow_past(end)
    world.source.workload.touch()


def store_lost_and_purged(world: World) -> None:
    """The store is lost, and the source has purged what was not captured: the earliest there is leaves a gap."""
    purged(world)
    world.say("the store is removed, and source.start says earliest")
    shutil.rmtree(world.store)
    world.configure("earliest")


def old_store_and_purged(world: World) -> None:
    """The store comes from an older copy, and the source has purged what came after it."""
    world.settle()
    copy = world.copy(world.store)
    world.say("changes in two binlog files, captured and applied; the source purges the first")
    world.source.workload.flush()
    world.source.workload.touch()
    world.source.workload.flush()
    world.source.workload.touch()
    world.level()
    world.source.purge()
    world.say("the store is restored from a copy of before")
    world.put_back(copy, world.store)
    world.source.workload.touch()


# ------------------------------------------------------------ the lake


def dropped_table(world: World) -> None:
    """The folder of a Delta table is removed."""
    world.settle()
    table = world.any_table()
    world.struck = table
    world.say(f"the Delta table {table} is removed")
    shutil.rmtree(world.table(table))
    world.source.workload.touch()


def restored_table(world: World) -> None:
    """RESTORE of a Delta table to an older version."""
    world.settle()
    table = world.any_table()
    version = DeltaTable(world.table(table)).version()
    world.settle()
    if world.dice.random() < 0.5:
        world.say(f"RESTORE {table} to version {version} by Spark")
        world.sql(f"RESTORE TABLE delta.`{world.table(table)}` TO VERSION AS OF {version}")
    else:
        world.say(f"restore {table} to version {version} by deltalake")
        DeltaTable(world.table(table)).restore(version)
    world.source.workload.touch()


def old_copy_of_table(world: World) -> None:
    """A Delta table comes from an older copy of its folder."""
    world.settle()
    table = world.any_table()
    copy = world.copy(world.table(table))
    world.settle()
    world.say(f"the Delta table {table} is restored from an older copy of its folder")
    world.put_back(copy, world.table(table))
    world.source.workload.touch()


def foreign_table(world: World) -> None:
    """Another Delta table lies in the place of ours, with the same rows."""
    world.settle()
    table = world.any_table()
    rows: pa.Table = DeltaTable(world.table(table)).to_pyarrow_table()
    world.say(f"the Delta table {table} is replaced by somebody's copy of its rows")
    shutil.rmtree(world.table(table))
    write_deltalake(world.table(table), rows)
    world.source.workload.touch()


def twin_table(world: World) -> None:
    """An empty Delta table with the schema and all properties of ours lies in its place."""
    world.settle()
    table = world.any_table()
    former = DeltaTable(world.table(table))
    schema, properties = former.schema(), dict(former.metadata().configuration)
    world.say(f"the Delta table {table} is replaced by an empty one with the same properties")
    shutil.rmtree(world.table(table))
    DeltaTable.create(world.table(table), schema)
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    world.sql(f"ALTER TABLE delta.`{world.table(table)}` SET TBLPROPERTIES ({listed})")
    world.source.workload.touch()


def foreign_column(world: World) -> None:
    """Somebody adds a column to a Delta table."""
    world.settle()
    table = world.source.workload.mirror
    world.say(f"a column is added to the Delta table {table}")
    DeltaTable(world.table(table)).alter.add_columns(Field("alien", PrimitiveType("string")))
    world.source.workload.touch()


_NEW_HISTORY = (
    Refusal(IdentityError, r"history is not the one that the store was captured from"),
    Refusal(IdentityError, r"belongs to a source with UUID"),
)
_GAP = (Refusal(CutOffError, r"the store begins at .* behind the cursor .*: transactions committed between the two"),)
_UNPROVED = (Refusal(TargetError, r"nothing proves that there are none in between"),)
_NOT_ACKED = (
    Refusal(IdentityError, r"history is not the one whose changes were acked"),
    Refusal(StorageError, r"the store is empty, but the cursor is at"),
)
_NO_STORE = (Refusal(StorageError, r"this folder has no store, but the meta .* knows of one"),)
_PURGED = (Refusal(SourceRefusedError, r"no longer has binlog\.\d+"),)
_GONE = (Refusal(TargetError, r"the Delta table is gone; it had changes up to"),)
_REPLACED = (Refusal(TargetError, r"the Delta table was (replaced: its id is|not made by Towpath)"),)
_OLDER = (Refusal(TargetError, r"an older copy was put in its place"),)
_RESTORED = (Refusal(TargetError, r"is a RESTORE to .* takes back changes"),)
_COLUMN = (Refusal(UnsupportedDdlError, r"has a column alien that the source's rows lack"),)
_FLIPPED = (Refusal(CdcError, r"checksum"),)

FAULTS: tuple[Fault, ...] = (
    Fault(reset_and_grown, _NEW_HISTORY, new_destination, of_source=True),
    Fault(reset_and_repeated, _NEW_HISTORY, new_destination, of_source=True),
    Fault(restored_table, _RESTORED, new_destination),
    Fault(unmounted_store, _NO_STORE, mount, "apply"),
    Fault(rebuilt, _NEW_HISTORY, new_destination, of_source=True),
    Fault(dropped_table, _GONE, new_destination_or_accepted_loss),
    Fault(store_begun_anew, _GAP, former_store_or_accepted_gap),
    Fault(flipped, _FLIPPED, mend_flipped),
    Fault(restored, _NEW_HISTORY, new_destination, of_source=True),
    Fault(old_copy_of_table, _OLDER, new_destination),
    Fault(switched, _NEW_HISTORY, new_destination, of_source=True),
    Fault(twin_table, _REPLACED, new_destination),
    Fault(purged, _PURGED, new_destination),
    Fault(both_begun_anew, _UNPROVED, former_store),
    Fault(foreign_column, _COLUMN, new_destination),
    Fault(store_lost_and_purged, _GAP, new_destination),
    Fault(foreign_table, _REPLACED, new_destination),
    Fault(old_store_and_purged, _PURGED, new_destination),
    Fault(store_lost_and_reset, _NOT_ACKED, new_destination, of_source=True),
)

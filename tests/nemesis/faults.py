"""Faults of a destination: continuing as if nothing had happened would lose or invent data.

A fault is injected when the lake equals the source. Afterwards the commands of its probe either bring the lake to the
source's state, or one of them is refused with an error of the listed classes whose message names the fault.
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

from cdc.base.errors import (
    CdcError,
    CutOffError,
    IdentityError,
    SourceRefusedError,
    StorageError,
    TargetError,
    UnsupportedDdlError,
)
from cdc.batches.subscribers import accept_tables
from cdc.lake.delta.log import table_record
from tests.nemesis.environment import Environment
from tests.nemesis.workload import APPEND

Probe = Literal["catch_up", "apply"]


@dataclass(frozen=True)
class Refusal:
    """An error that is an acceptable answer to a fault."""

    error: type[CdcError]
    words: str
    """A regular expression that must match in the message."""

    def allows(self, error: CdcError) -> bool:
        return isinstance(error, self.error) and re.search(self.words, str(error)) is not None


@dataclass(frozen=True)
class Fault:
    """One fault, and how it must be answered."""

    inject: Callable[[Environment], None]
    refusals: tuple[Refusal, ...]
    recover: Callable[[Environment], None]
    """Does what the documentation says to do after the refusal; then capture and apply reach the source's state."""
    probe: Probe = "catch_up"
    """The commands that are tried: capture and apply, or apply alone."""
    must_refuse: bool = True
    """Whether the lost data cannot be recovered, so that only a refusal is right."""
    of_source: bool = False
    """Whether the source has another history, of which nothing may reach the lake."""

    @property
    def name(self) -> str:
        return self.inject.__name__


# ------------------------------------------------------------ recovery


def new_destination(env: Environment) -> None:
    """Begins a new destination of the same tables from the source's first binlog file; or of new tables, if that file
    or the former tables are gone."""
    source = env.source
    if source.whole and source.files()[0][0].endswith(".000001"):
        env.log("a new destination, from the first binlog file on")
        env.begin()
        return
    env.log("a new destination for new tables")
    source.begin(f"{source.workload.database}x", f"{source.workload.seed} again")
    env.begin()
    env.work()


def accept_gap(env: Environment) -> None:
    """Runs ``cdc batch accept-gap``: the changelog lacks the changes of the gap for ever; in the other tables later
    changes of the same rows repair them."""
    env.log("the gap is accepted")
    env.service().accept_beginning()
    env.accepted.add(APPEND)


def former_store_or_accepted_gap(env: Environment) -> None:
    env.rng.choice((former_store, accept_gap))(env)


def new_destination_or_accepted_loss(env: Environment) -> None:
    """Begins a new destination; or, for a mirror, runs ``cdc batch accept-gap --table``: the table is created anew and
    filled by changes."""
    if env.damaged_table == APPEND or env.rng.random() < 0.5:
        new_destination(env)
        return
    name = f"{env.source.workload.database}.{env.damaged_table}"
    env.log(f"the loss of {name} is accepted")
    accept_tables(env.service().meta, "apply", {name: table_record(env.config, name)})


# ------------------------------------------------------------ the source


def reset_and_grown(env: Environment) -> None:
    """RESET, and the new history grows beyond the end of the old one."""
    env.settle()
    end = env.source.end()
    env.log(f"RESET at {end}, and growth beyond")
    env.source.whole = False
    env.source.reset()
    env.source.grow_past(end)
    env.source.workload.touch()


def reset_and_repeated(env: Environment) -> None:
    """RESET, and the same statements with other values: the old end is the boundary of an event again."""
    env.settle()
    env.log("RESET, and the same statements again, with other values, and more")
    actions = list(env.source.workload.history.actions)
    env.source.start_over()
    env.source.workload.repeat(actions)
    env.source.workload.touch()


def restored(env: Environment) -> None:
    """The source is restored from a copy that lacks captured transactions, and continues with other ones."""
    env.settle()
    env.log("the source is copied")
    copy = env.source.copy()
    env.settle()
    end = env.source.end()
    env.log(f"the source is restored from the copy, and grows beyond {end}")
    env.source.restore(copy)
    env.source.workload.salt += 1
    env.source.workload.touch()
    if env.rng.random() < 0.5:
        env.source.grow_past(end)


def rebuilt(env: Environment) -> None:
    """The source is set up anew at the same port, with fresh data."""
    env.settle()
    end = env.source.end()
    env.log("the source is rebuilt at its port, with the same tables, empty")
    env.source.rebuild()
    env.source.workload.run(3)
    if env.rng.random() < 0.5:
        env.source.grow_past(end)
    env.source.workload.touch()


def switched(env: Environment) -> None:
    """Another server stands at the source's address: its history has the same shape, and other values."""
    env.settle()
    actions = list(env.source.workload.history.actions)
    same = env.rng.random() < 0.7
    env.log(f"another server at the same address, {'with the same' if same else 'with another'} UUID")
    env.source.rebuild(same_identity=same)
    env.source.workload.repeat(actions)
    env.source.workload.touch()


def purged(env: Environment) -> None:
    """The source purges binlog files that were not captured yet."""
    env.settle()
    env.log("changes in two binlog files, of which the source purges the first before it was captured")
    env.source.workload.flush()
    env.source.workload.touch()
    env.source.workload.flush()
    env.source.workload.touch()
    env.source.purge()


def flipped(env: Environment) -> None:
    """A bit of a large transaction is wrong in the source's file."""
    env.settle()
    rows = 40
    env.log(f"one transaction of {rows} large rows, with a wrong bit near its end in the source's file")
    env.source.workload.large(rows)
    env.source.flip()


def repair_flipped(env: Environment) -> None:
    stored = sum(file.stat().st_size for file in env.store.rglob("*") if file.is_file())
    assert stored < 20_000_000, f"the store has grown to {stored} bytes by reading 2.4 MB"
    env.log("the source's file is repaired")
    env.source.flip()


# ------------------------------------------------------------ store and meta


def unmounted_store(env: Environment) -> None:
    """The store's folder is missing, as on another machine or if a disk is not mounted."""
    env.settle()
    env.source.workload.touch()
    env.log("the store is moved away")
    env.store.rename(env.store.with_suffix(".away"))


def mount(env: Environment) -> None:
    for path in (env.store, env.meta):
        away = path.with_suffix(".away")
        if away.exists():
            env.log(f"the {path.name} is put back")
            shutil.rmtree(path, ignore_errors=True)
            away.rename(path)


def store_begun_anew(env: Environment) -> None:
    """The store is lost, and capture begins anew at the source's current position, after changes that were not captured."""
    env.settle()
    env.source.workload.touch()
    env.log("the store is removed, and source.start says now")
    env.store.rename(env.store.with_suffix(".away"))
    env.configure("now")
    env.capture()
    env.source.workload.touch()


def both_begun_anew(env: Environment) -> None:
    """Store and meta are lost, and capture begins anew after changes that were not captured."""
    env.settle()
    env.source.workload.touch()
    env.log("store and meta are removed, and source.start says now")
    env.store.rename(env.store.with_suffix(".away"))
    env.meta.rename(env.meta.with_suffix(".away"))
    env.configure("now")
    env.capture()
    env.source.workload.touch()


def former_store(env: Environment) -> None:
    """Puts back the store as it was before it was lost."""
    env.configure("{file: binlog.000001, pos: 4}")
    mount(env)


def store_lost_and_reset(env: Environment) -> None:
    """The store is lost, and the source has another history: capture reads other transactions than were applied."""
    env.settle()
    end = env.source.end()
    env.log(f"the store is removed; RESET at {end}, and growth beyond")
    shutil.rmtree(env.store)
    env.source.whole = False
    env.source.reset()
    if env.rng.random() < 0.7:
        env.source.grow_past(end)
    env.source.workload.touch()


def store_lost_and_purged(env: Environment) -> None:
    """The store is lost, and the source has purged files that were not captured: its earliest position leaves a gap."""
    purged(env)
    env.log("the store is removed, and source.start says earliest")
    shutil.rmtree(env.store)
    env.configure("earliest")


def old_store_and_purged(env: Environment) -> None:
    """The store is restored from an older copy, and the source has purged the later transactions."""
    env.settle()
    copy = env.copy(env.store)
    env.log("changes in two binlog files, captured and applied; the source purges the first")
    env.source.workload.flush()
    env.source.workload.touch()
    env.source.workload.flush()
    env.source.workload.touch()
    env.catch_up()
    env.source.purge()
    env.log("the store is restored from a copy of before")
    env.restore_copy(copy, env.store)
    env.source.workload.touch()


# ------------------------------------------------------------ the lake


def dropped_table(env: Environment) -> None:
    """The folder of a Delta table is removed."""
    env.settle()
    table = env.any_table()
    env.damaged_table = table
    env.log(f"the Delta table {table} is removed")
    shutil.rmtree(env.table(table))
    env.source.workload.touch()


def restored_table(env: Environment) -> None:
    """RESTORE of a Delta table to an older version."""
    env.settle()
    table = env.any_table()
    version = DeltaTable(env.table(table)).version()
    env.settle()
    if env.rng.random() < 0.5:
        env.log(f"RESTORE {table} to version {version} by Spark")
        env.sql(f"RESTORE TABLE delta.`{env.table(table)}` TO VERSION AS OF {version}")
    else:
        env.log(f"restore {table} to version {version} by deltalake")
        DeltaTable(env.table(table)).restore(version)
    env.source.workload.touch()


def old_copy_of_table(env: Environment) -> None:
    """A Delta table is restored from an older copy of its folder."""
    env.settle()
    table = env.any_table()
    copy = env.copy(env.table(table))
    env.settle()
    env.log(f"the Delta table {table} is restored from an older copy of its folder")
    env.restore_copy(copy, env.table(table))
    env.source.workload.touch()


def foreign_table(env: Environment) -> None:
    """The Delta table is replaced by another one with the same rows."""
    env.settle()
    table = env.any_table()
    rows: pa.Table = DeltaTable(env.table(table)).to_pyarrow_table()
    env.log(f"the Delta table {table} is replaced by another table with the same rows")
    shutil.rmtree(env.table(table))
    write_deltalake(env.table(table), rows)
    env.source.workload.touch()


def twin_table(env: Environment) -> None:
    """The Delta table is replaced by an empty one with the same schema and properties."""
    env.settle()
    table = env.any_table()
    former = DeltaTable(env.table(table))
    schema, properties = former.schema(), dict(former.metadata().configuration)
    env.log(f"the Delta table {table} is replaced by an empty one with the same properties")
    shutil.rmtree(env.table(table))
    DeltaTable.create(env.table(table), schema)
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    env.sql(f"ALTER TABLE delta.`{env.table(table)}` SET TBLPROPERTIES ({listed})")
    env.source.workload.touch()


def foreign_column(env: Environment) -> None:
    """Another user adds a column to a Delta table."""
    env.settle()
    table = env.source.workload.mirror
    env.log(f"a column is added to the Delta table {table}")
    DeltaTable(env.table(table)).alter.add_columns(Field("alien", PrimitiveType("string")))
    env.source.workload.touch()


_NEW_HISTORY = (
    Refusal(IdentityError, r"history is not the one that the store was captured from"),
    Refusal(IdentityError, r"belongs to a source with UUID"),
    Refusal(IdentityError, r"another server answers, and it has none of the store's transactions"),
)
_GAP = (Refusal(CutOffError, r"the store begins at .* behind the cursor .*: transactions committed between the two"),)
_UNPROVED = (Refusal(TargetError, r"nothing proves that there are none in between"),)
_NOT_ACKED = (
    Refusal(IdentityError, r"history is not the one whose changes were read"),
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
    Fault(flipped, _FLIPPED, repair_flipped),
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

"""What happens around a destination every day and must do no harm: after it, capture and apply reach the source's state.

Each function does one such thing, whatever state the world is in, and leaves it able to go on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta

from deltalake import DeltaTable

from cdc import pipeline
from cdc.batches.lease import Lease
from cdc.errors import CdcError, IdentityError, LeaseHeldError, MergeFailedError, TokenError
from tests.nemesis.workload import APPEND
from tests.nemesis.world import World

OTHER = "another owner"
_TABLES = ("items", "lines", APPEND)


class Interrupted(Exception):
    """Ends a merge in the middle, like the end of the process that runs it."""


def _merge(world: World, lease: Lease) -> None:
    pipeline.merge(world.config, lease)


# ------------------------------------------------------------ kills and lost messages


def killed_capture(world: World) -> None:
    """kill -9 of capture while it stores."""
    world.killed_capture()


def no_ack(world: World) -> None:
    """The process ends between merge and ack."""
    world.level()
    world.source.workload.touch()
    world.capture()
    lease = world.fetch(1)
    assert lease is not None
    world.say(f"merge batch {lease.batch} and never ack it")
    pipeline.merge(world.config, lease)


def lost_ack(world: World) -> None:
    """The answer to an ack is lost, and the ack repeated."""
    world.level()
    world.source.workload.touch()
    world.capture()
    lease = world.fetch()
    assert lease is not None
    world.say(f"merge batch {lease.batch} and ack it twice")
    results = pipeline.merge(world.config, lease)
    pipeline.finalize(world.config, lease, True, results)
    pipeline.finalize(world.config, lease, True, results)


def rolled_back(world: World) -> None:
    """A batch is merged and rolled back, so that its transactions come again in batches with other borders."""
    world.level()
    world.work(3)
    world.source.workload.touch()
    world.capture()
    lease = world.fetch(2)
    assert lease is not None
    world.say(f"merge batch {lease.batch} and roll it back")
    pipeline.merge(world.config, lease)
    pipeline.finalize(world.config, lease, False)


def half_a_batch(world: World) -> None:
    """The process ends when some of a batch's tables are merged and others are not."""
    world.level()
    world.source.workload.touch()
    world.capture()
    lease = world.fetch()
    assert lease is not None
    failing = world.dice.choice(_TABLES)
    world.say(f"merge batch {lease.batch}, interrupted before {failing}")

    def interrupt(table: str) -> None:
        if table.endswith(f".{failing}"):
            raise Interrupted

    with world.before_statement(interrupt):
        try:
            pipeline.merge(world.config, lease)
        except (Interrupted, CdcError) as error:
            world.say(f"… {type(error).__name__}")
    if world.dice.random() < 0.5:
        pipeline.finalize(world.config, lease, False)


def killed_driver(world: World) -> None:
    """The JVM of the Spark driver is killed while it merges."""
    world.level()
    world.source.workload.touch()
    world.capture()
    lease = world.fetch()
    assert lease is not None
    world.say(f"merge batch {lease.batch}, whose driver is killed")
    with world.before_statement(lambda table: pipeline.stop()):
        error = world.outcome(lambda: _merge(world, lease))
    assert isinstance(error, MergeFailedError), "a merge without a driver went well"
    pipeline.finalize(world.config, lease, False)


def restarted_server(world: World) -> None:
    """The source is stopped, or killed, and started."""
    if world.dice.random() < 0.5:
        world.say("the source is restarted")
        world.source.restart()
    else:
        world.say("the source is killed and started")
        world.source.kill()


# ------------------------------------------------------------ the source


def rotated(world: World) -> None:
    """The source begins new binlog files."""
    world.say("FLUSH BINARY LOGS")
    world.source.workload.flush(world.dice.randrange(1, 4))


def purged_in_time(world: World) -> None:
    """The source deletes binlog files that were captured."""
    world.say("FLUSH BINARY LOGS, capture, PURGE of what was captured")
    world.source.workload.flush()
    world.source.workload.touch()
    world.capture()
    world.source.purge()


def restored_in_time(world: World) -> None:
    """The source goes back to a copy of its data that has everything that was captured."""
    world.capture()
    world.say("the source is copied")
    copy = world.source.copy()
    world.work()
    world.say("the source is restored from the copy; nothing that came after it was captured")
    world.source.restore(copy)


def new_table(world: World) -> None:
    """CREATE TABLE."""
    world.say("the application makes a table")
    world.source.workload.add_table(world.dice.randrange(3))


# ------------------------------------------------------------ store and meta


def lost_meta(world: World) -> None:
    """The meta is deleted: batches begin again with the store's first."""
    world.say("the meta is removed")
    shutil.rmtree(world.meta)
    if world.dice.random() < 0.5:
        error = world.outcome(world.apply)
        assert isinstance(error, IdentityError) and "cdc capture" in str(error), "it does not say what binds the source"
    world.capture()


def lost_store(world: World) -> None:
    """The store is deleted, and capture reads everything again from the source, which still has it."""
    world.level()
    if not world.source.files()[0][0].endswith(".000001"):
        world.say("(the source has purged what a new store would need: the store stays)")
        return
    world.say("the store is removed")
    shutil.rmtree(world.store)
    world.capture()


def lost_both(world: World) -> None:
    """Store and meta are deleted, and everything begins again: the tables skip what they have."""
    lost_store(world)
    if not world.source.files()[0][0].endswith(".000001"):
        return
    world.say("the meta is removed")
    shutil.rmtree(world.meta)
    world.capture()


def restored_store(world: World) -> None:
    """The store comes from an older copy; the source still has what came after it."""
    world.level()
    copy = world.copy(world.store)
    world.source.workload.touch()
    world.level()
    world.say("the store is restored from a copy")
    world.put_back(copy, world.store)


def restored_meta(world: World) -> None:
    """The meta comes from an older copy: batches that were acked come again."""
    world.level()
    copy = world.copy(world.meta)
    world.source.workload.touch()
    world.level()
    world.say("the meta is restored from a copy")
    world.put_back(copy, world.meta)


def restored_both(world: World) -> None:
    """Store and meta come from an older copy."""
    world.capture()
    store, meta = world.copy(world.store), world.copy(world.meta)
    world.source.workload.touch()
    world.level()
    world.say("store and meta are restored from a copy")
    world.put_back(store, world.store)
    world.put_back(meta, world.meta)


def unmounted_both(world: World) -> None:
    """Neither store nor meta is there for a while, as on another machine: apply has nothing to go by, and makes
    nothing that would later pass for a meta."""
    away = [(path, path.with_suffix(".away")) for path in (world.store, world.meta)]
    world.say("store and meta are moved away")
    for path, to in away:
        path.rename(to)
    world.outcome(world.apply)
    made = [path.name for path, _ in away if path.exists()]
    assert not made, f"apply without store and meta has made {made}"
    world.say("store and meta are put back")
    for path, to in away:
        to.rename(path)


# ------------------------------------------------------------ the lake


def optimised(world: World) -> None:
    """Somebody compacts a table."""
    world.level()
    table = world.dice.choice(_TABLES)
    if world.dice.random() < 0.5:
        world.say(f"OPTIMIZE {table} by Spark")
        world.sql(f"OPTIMIZE delta.`{world.table(table)}`")
    else:
        world.say(f"optimise {table} by deltalake")
        DeltaTable(world.table(table)).optimize.compact()


def vacuumed(world: World) -> None:
    """Somebody deletes the files of former versions."""
    world.level()
    table = world.dice.choice(_TABLES)
    world.say(f"vacuum {table} without retention")
    DeltaTable(world.table(table)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def foreign_property(world: World) -> None:
    """Somebody sets a property of a table."""
    world.level()
    table = world.dice.choice(_TABLES)
    world.say(f"a property of {table} is set")
    world.sql(f"ALTER TABLE delta.`{world.table(table)}` SET TBLPROPERTIES ('owner.team' = 'billing')")


def pruned_log(world: World) -> None:
    """A table's log loses its first entries, which Delta deletes with time."""
    world.level()
    table = world.dice.choice(_TABLES)
    world.say(f"the log of {table} is pruned to a checkpoint")
    delta = DeltaTable(world.table(table))
    delta.create_checkpoint()
    for file in (world.table(table) / "_delta_log").glob("*.json"):
        if int(file.stem) < delta.version():
            file.unlink()


def half_made_table(world: World) -> None:
    """The process that makes a Delta table ends before it has committed anything."""
    world.level()
    world.say("the application makes a table, and its folder in the lake has an empty log")
    world.source.workload.add_table(2)
    log = world.table(world.source.workload.history.tables[-1]) / "_delta_log"
    log.mkdir(parents=True)
    if world.dice.random() < 0.5:
        (log / "_staged_commits").mkdir()


# ------------------------------------------------------------ time


def expired_lease(world: World) -> None:
    """An owner merges, and its lease expires before the ack: another takes the batch over."""
    world.level()
    world.source.workload.touch()
    world.capture()
    lease = world.fetch(1, owner=OTHER)
    assert lease is not None
    world.say(f"{OTHER} merges batch {lease.batch} and is late")
    results = pipeline.merge(world.config, lease)
    world.say("the clock goes two hours forward")
    world.clock.offset += timedelta(hours=2)
    world.apply()
    error = world.outcome(lambda: pipeline.finalize(world.config, lease, True, results))
    assert isinstance(error, TokenError), "an ack with a token that was replaced went well"


def lease_for_ever(world: World) -> None:
    """The clock goes back, so that the lease of another owner seems to last for ever."""
    world.level()
    world.source.workload.touch()
    world.capture()
    lease = world.fetch(1, owner=OTHER)
    assert lease is not None
    world.say(f"{OTHER} takes batch {lease.batch}; the clock goes a year back")
    world.clock.offset -= timedelta(days=365)
    error = world.outcome(world.apply)
    assert isinstance(error, LeaseHeldError) and OTHER in str(error), "a batch of another owner was handed out"
    world.say(f"{OTHER} rolls its batches back")
    pipeline.release(world.config, OTHER)


WEATHER: tuple[Callable[[World], None], ...] = (
    killed_capture,
    no_ack,
    optimised,
    restored_store,
    half_a_batch,
    restarted_server,
    vacuumed,
    rotated,
    half_made_table,
    lost_meta,
    lost_ack,
    pruned_log,
    restored_in_time,
    expired_lease,
    foreign_property,
    purged_in_time,
    restored_meta,
    rolled_back,
    new_table,
    unmounted_both,
    restored_both,
    lost_store,
    lost_both,
    lease_for_ever,
)
RARE: tuple[Callable[[World], None], ...] = (killed_driver,)
"""What takes long: one seed of twenty has it."""

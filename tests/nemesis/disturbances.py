"""Disturbances of daily operation that must be harmless: afterwards capture and apply reach the source's state.

Each function causes one disturbance, in any state of the environment, and leaves the environment usable.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta

from deltalake import DeltaTable

from cdc.base.errors import CdcError, IdentityError, LeaseHeldError, MergeFailedError, TokenError
from cdc.batches.lease import Lease
from cdc.lake import pipeline
from tests.nemesis.environment import Environment

OTHER = "another owner"


class Interrupted(Exception):
    """Ends a merge in the middle, like the end of its process."""


def _merge(env: Environment, lease: Lease) -> None:
    pipeline.merge(env.config, lease)


# ------------------------------------------------------------ kills and lost messages


def killed_capture(env: Environment) -> None:
    """kill -9 of capture while it stores."""
    env.killed_capture()


def no_ack(env: Environment) -> None:
    """The process ends between merge and ack."""
    env.catch_up()
    env.source.workload.touch()
    env.capture()
    lease = env.fetch(1)
    assert lease is not None
    env.log(f"merge batch {lease.batch} and never ack it")
    pipeline.merge(env.config, lease)


def lost_ack(env: Environment) -> None:
    """The answer to an ack is lost, and the ack is repeated."""
    env.catch_up()
    env.source.workload.touch()
    env.capture()
    lease = env.fetch()
    assert lease is not None
    env.log(f"merge batch {lease.batch} and ack it twice")
    results = pipeline.merge(env.config, lease)
    pipeline.finalize(env.config, lease, True, results)
    pipeline.finalize(env.config, lease, True, results)


def rolled_back(env: Environment) -> None:
    """A batch is merged and rolled back, so that its transactions come again in batches with other boundaries."""
    env.catch_up()
    env.work(3)
    env.source.workload.touch()
    env.capture()
    lease = env.fetch(2)
    assert lease is not None
    env.log(f"merge batch {lease.batch} and roll it back")
    pipeline.merge(env.config, lease)
    pipeline.finalize(env.config, lease, False)


def half_a_batch(env: Environment) -> None:
    """The process ends after some of a batch's tables are merged."""
    env.catch_up()
    env.source.workload.touch()
    env.capture()
    lease = env.fetch()
    assert lease is not None
    failing = env.any_table()
    env.log(f"merge batch {lease.batch}, interrupted before {failing}")

    def interrupt(table: str) -> None:
        if table.endswith(f".{failing}"):
            raise Interrupted

    with env.before_statement(interrupt):
        try:
            pipeline.merge(env.config, lease)
        except (Interrupted, CdcError) as error:
            env.log(f"… {type(error).__name__}")
    if env.rng.random() < 0.5:
        pipeline.finalize(env.config, lease, False)


def killed_driver(env: Environment) -> None:
    """The JVM of the Spark driver is killed while it merges."""
    env.catch_up()
    env.source.workload.touch()
    env.capture()
    lease = env.fetch()
    assert lease is not None
    env.log(f"merge batch {lease.batch}, whose driver is killed")
    with env.before_statement(lambda table: pipeline.stop()):
        error = env.first_error(lambda: _merge(env, lease))
    assert isinstance(error, MergeFailedError), "a merge without a driver succeeded"
    pipeline.finalize(env.config, lease, False)


def restarted_server(env: Environment) -> None:
    """The source is stopped, or killed, and started."""
    if env.rng.random() < 0.5:
        env.log("the source is restarted")
        env.source.restart()
    else:
        env.log("the source is killed and started")
        env.source.kill()


# ------------------------------------------------------------ the source


def rotated(env: Environment) -> None:
    """The source begins new binlog files."""
    env.log("FLUSH BINARY LOGS")
    env.source.workload.flush(env.rng.randrange(1, 4))


def purged_in_time(env: Environment) -> None:
    """The source purges binlog files that were captured."""
    env.log("FLUSH BINARY LOGS, capture, PURGE of what was captured")
    env.source.workload.flush()
    env.source.workload.touch()
    env.capture()
    env.source.purge()


def restored_in_time(env: Environment) -> None:
    """The source is restored from a copy of its data that has every captured transaction."""
    env.capture()
    env.log("the source is copied")
    copy = env.source.copy()
    env.work()
    env.log("the source is restored from the copy; nothing that came after it was captured")
    env.source.restore(copy)


def new_table(env: Environment) -> None:
    """CREATE TABLE."""
    env.log("the application makes a table")
    env.source.workload.add_table(env.rng.randrange(3))


# ------------------------------------------------------------ store and meta


def lost_meta(env: Environment) -> None:
    """The meta is deleted: batches begin again with the store's first transaction."""
    env.log("the meta is removed")
    shutil.rmtree(env.meta)
    if env.rng.random() < 0.5:
        error = env.first_error(env.apply)
        assert isinstance(error, IdentityError) and "cdc capture" in str(error), (
            "the message does not name the command that binds the source"
        )
    env.capture()


def lost_store(env: Environment) -> None:
    """The store is deleted, and capture reads everything again from the source, which still has it."""
    env.catch_up()
    if not env.source.files()[0][0].endswith(".000001"):
        env.log("(the source has purged what a new store would need: the store stays)")
        return
    env.log("the store is removed")
    shutil.rmtree(env.store)
    env.capture()


def lost_both(env: Environment) -> None:
    """Store and meta are deleted, and everything begins again: the tables skip what they have."""
    lost_store(env)
    if not env.source.files()[0][0].endswith(".000001"):
        return
    env.log("the meta is removed")
    shutil.rmtree(env.meta)
    env.capture()


def restored_store(env: Environment) -> None:
    """The store is restored from an older copy; the source still has the later transactions."""
    env.catch_up()
    copy = env.copy(env.store)
    env.source.workload.touch()
    env.catch_up()
    env.log("the store is restored from a copy")
    env.restore_copy(copy, env.store)


def restored_meta(env: Environment) -> None:
    """The meta is restored from an older copy: acked batches come again."""
    env.catch_up()
    copy = env.copy(env.meta)
    env.source.workload.touch()
    env.catch_up()
    env.log("the meta is restored from a copy")
    env.restore_copy(copy, env.meta)


def restored_both(env: Environment) -> None:
    """Store and meta are restored from an older copy."""
    env.capture()
    store, meta = env.copy(env.store), env.copy(env.meta)
    env.source.workload.touch()
    env.catch_up()
    env.log("store and meta are restored from a copy")
    env.restore_copy(store, env.store)
    env.restore_copy(meta, env.meta)


def unmounted_both(env: Environment) -> None:
    """Store and meta are missing for a while, as on another machine: apply cannot work, and must not create a store
    or a meta."""
    away = [(path, path.with_suffix(".away")) for path in (env.store, env.meta)]
    env.log("store and meta are moved away")
    for path, to in away:
        path.rename(to)
    env.first_error(env.apply)
    made = [path.name for path, _ in away if path.exists()]
    assert not made, f"apply without store and meta has made {made}"
    env.log("store and meta are put back")
    for path, to in away:
        to.rename(path)


# ------------------------------------------------------------ the lake


def optimised(env: Environment) -> None:
    """Another user compacts a table."""
    table = env.filled_table()
    if env.rng.random() < 0.5:
        env.log(f"OPTIMIZE {table} by Spark")
        env.sql(f"OPTIMIZE delta.`{env.table(table)}`")
    else:
        env.log(f"optimise {table} by deltalake")
        DeltaTable(env.table(table)).optimize.compact()


def vacuumed(env: Environment) -> None:
    """Another user deletes the files of former versions."""
    table = env.filled_table()
    env.log(f"vacuum {table} without retention")
    DeltaTable(env.table(table)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def foreign_property(env: Environment) -> None:
    """Another user sets a property of a table."""
    table = env.filled_table()
    env.log(f"a property of {table} is set")
    env.sql(f"ALTER TABLE delta.`{env.table(table)}` SET TBLPROPERTIES ('owner.team' = 'billing')")


def pruned_log(env: Environment) -> None:
    """A table's log loses its first entries, as Delta's cleanup deletes them."""
    table = env.filled_table()
    env.log(f"the log of {table} is pruned to a checkpoint")
    delta = DeltaTable(env.table(table))
    delta.create_checkpoint()
    for file in (env.table(table) / "_delta_log").glob("*.json"):
        if int(file.stem) < delta.version():
            file.unlink()


def half_made_table(env: Environment) -> None:
    """The process that creates a Delta table ends before its first commit."""
    env.catch_up()
    env.log("the application makes a table, and its folder in the lake has an empty log")
    env.source.workload.add_table(2)
    log = env.table(env.source.workload.history.tables[-1]) / "_delta_log"
    log.mkdir(parents=True)
    if env.rng.random() < 0.5:
        (log / "_staged_commits").mkdir()


# ------------------------------------------------------------ time


def expired_lease(env: Environment) -> None:
    """The lease of an owner expires between merge and ack: another owner takes over the batch."""
    env.catch_up()
    env.source.workload.touch()
    env.capture()
    lease = env.fetch(1, owner=OTHER)
    assert lease is not None
    env.log(f"{OTHER} merges batch {lease.batch} and is late")
    results = pipeline.merge(env.config, lease)
    env.log("the clock goes two hours forward")
    env.clock.offset += timedelta(hours=2)
    env.apply()
    error = env.first_error(lambda: pipeline.finalize(env.config, lease, True, results))
    assert isinstance(error, TokenError), "an ack with a replaced token succeeded"


def lease_for_ever(env: Environment) -> None:
    """The clock goes back, so that the lease of another owner does not seem to expire."""
    env.catch_up()
    env.source.workload.touch()
    env.capture()
    lease = env.fetch(1, owner=OTHER)
    assert lease is not None
    env.log(f"{OTHER} takes batch {lease.batch}; the clock goes a year back")
    env.clock.offset -= timedelta(days=365)
    error = env.first_error(env.apply)
    assert isinstance(error, LeaseHeldError) and OTHER in str(error), "a batch of another owner was handed out"
    env.log(f"{OTHER} rolls its batches back")
    pipeline.release(env.config, OTHER)


DISTURBANCES: tuple[Callable[[Environment], None], ...] = (
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
RARE_DISTURBANCES: tuple[Callable[[Environment], None], ...] = (killed_driver,)
"""Slow ones: one seed of twenty has one."""

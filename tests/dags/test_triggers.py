"""Waiting in the triggerer: triggers by themselves, and the operators and schedules that use them."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from cdc.airflow import TowpathCaptureWatchOperator, TowpathFetchOperator, build_dags
from cdc.airflow.compat import AirflowFailException, AssetOrTimeSchedule, TaskDeferred
from cdc.airflow.triggers import TowpathBatchTrigger, TowpathCaptureTrigger, TowpathStoreTrigger
from cdc.airflow.watching import StoreWatcher
from cdc.base.errors import LeaseHeldError, StoreIncompleteError
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig, load
from cdc.meta import SourceIdentity, open_meta
from cdc.server.app import ServerApp
from cdc.server.destinations import ServedDestination
from cdc.store.formats.layout import segments_folder
from cdc.store.formats.state import CaptureState, StoreLock, write_capture_state
from cdc.store.reader.look import StoreLook
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.pipeline import FakePipeline
from cdc.testing.stores import Filler
from tests.fault.support import wait_for
from tests.support.airflows import NoEvents
from tests.support.server import client_config, in_thread, server_process, with_tokens
from tests.support.unit_batches import make_config

States = dict[str, str | None]
Write = Callable[..., Path]
SOURCE = SourceIdentity(server_uuid="uuid-1", flavor="mysql", base_name="binlog", epoch=0, start_gtid=None)
OWNER = "airflow:apply_shop"
CONTEXT: Any = {"inlet_events": NoEvents()}


class Store:
    """A destination whose store grows when a test says so. ``client``: the configuration by which Airflow reaches it,
    if a server has the store."""

    def __init__(self, config: DestinationConfig, client: DestinationConfig | None = None) -> None:
        self.config, self.client = config, config if client is None else client
        self._log = BinlogBuilder()

    def trigger(self, pause_s: float = 0.0) -> TowpathStoreTrigger:
        """The trigger as the triggerer makes it, from what Airflow stores of the DAG."""
        store = self.client.store
        place = str(store.path) if store.url is None else store.url
        trigger = TowpathStoreTrigger(conf_file=str(self.client.file), store=place, pause_s=pause_s)
        made: TowpathStoreTrigger = serialized(trigger)
        return made

    def put(self, transactions: int = 1) -> None:
        for number in range(transactions):
            self._log.transaction("shop", "orders", [number])
        filler = Filler(self.config.store.path)
        filler.put(self._log)
        filler.close()
        open_meta(self.config).bind_source(SOURCE)


@pytest.fixture
def store(write_conf: Write) -> Store:
    return Store(load(write_conf() / "shop.yaml"))


@pytest.fixture(params=["file", "server"])
def placed(request: pytest.FixtureRequest, write_conf: Write, tmp_path: Path) -> Iterator[Store]:
    """A store on this machine, or at a server."""
    config = load(write_conf() / "shop.yaml")
    if request.param == "file":
        yield Store(config)
        return
    config = with_tokens(config)
    with in_thread([ServedDestination(config)]) as url:
        yield Store(config, client_config(config, tmp_path / "client", url))


def serialized(trigger: Any) -> Any:
    """The trigger as the triggerer makes it, from what Airflow stores."""
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**arguments)


async def following(events: AsyncIterator[Any], limit_s: float = 10) -> Any:
    """The payload of the next event."""
    return (await asyncio.wait_for(anext(events), limit_s)).payload


# --- the store


def test_a_store_trigger_fires_once_for_what_came(placed: Store) -> None:
    config = placed.config
    trigger = placed.trigger()

    async def run() -> None:
        events = trigger.run()
        waits = asyncio.ensure_future(following(events, 60))
        await asyncio.sleep(1.2)
        assert not waits.done(), "there is no store"
        placed.put(2)
        service = BatchService(config)
        assert await waits == {"destination": "shop", "seq": service.last_seq()}
        waits = asyncio.ensure_future(following(events, 60))
        await asyncio.sleep(1.5)
        assert not waits.done(), "the same transactions wait, and no others came"
        lease = service.get(OWNER)
        assert lease is not None
        service.rollback(lease.batch, lease.token)
        await asyncio.sleep(1.2)
        assert not waits.done(), "a batch that was rolled back is left to the schedule"
        began = time.monotonic()
        placed.put()
        assert (await waits)["seq"] == service.last_seq()
        assert time.monotonic() - began < 30
        await events.aclose()

    asyncio.run(run())


def test_a_trigger_that_starts_again_says_what_still_waits(placed: Store) -> None:
    config = placed.config
    placed.put(2)

    async def run(expected: bool) -> None:
        events = placed.trigger().run()
        waits = asyncio.ensure_future(following(events, 60))
        await asyncio.sleep(1.5)
        assert waits.done() is expected
        waits.cancel()

    asyncio.run(run(True))
    assert BatchService(config).get(OWNER) is not None
    asyncio.run(run(False))


def test_a_store_that_was_begun_anew_is_noticed(placed: Store) -> None:
    """Its transactions have lower seqs than those that were told of the former one."""

    async def run() -> None:
        placed.put(9)
        events = placed.trigger().run()
        former = (await following(events, 60))["seq"]
        waits = asyncio.ensure_future(following(events, 60))
        await asyncio.sleep(1.5)
        shutil.rmtree(placed.config.store.path)
        (placed.config.meta.path / "meta.json").unlink()
        Store(placed.config).put(2)
        assert 0 < (await waits)["seq"] < former
        await events.aclose()

    asyncio.run(run())


def test_events_keep_their_distance(placed: Store) -> None:
    trigger = placed.trigger(pause_s=2.0)

    async def run() -> None:
        placed.put()
        events = trigger.run()
        await following(events)
        began = time.monotonic()
        placed.put()
        await following(events)
        assert 1.9 < time.monotonic() - began < 30
        await events.aclose()

    asyncio.run(run())


def test_a_meta_that_cannot_be_read_is_told_once_and_asked_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    config = store.config
    monkeypatch.setattr("cdc.airflow.triggers._RETRY_S", 0.2)
    trigger = TowpathStoreTrigger(conf_file=str(config.file), store=str(config.store.path), pause_s=0.0)
    said: list[str] = []
    monkeypatch.setattr(trigger.log, "warning", lambda text, *values: said.append(text % values))

    async def run() -> None:
        store.put()
        meta = config.meta.path / "meta.json"
        good = meta.read_text()
        meta.write_text("{")
        events = trigger.run()
        waits = asyncio.ensure_future(following(events, 60))
        await asyncio.sleep(1.5)
        assert not waits.done()
        meta.write_text(good)
        assert (await waits)["destination"] == "shop"
        await events.aclose()

    asyncio.run(run())
    assert len(said) == 1
    assert "meta.json" in said[0]


def test_many_destinations_at_a_server_take_one_request_at_a_time(tmp_path: Path) -> None:
    stores = []
    for number in range(20):
        config = with_tokens(make_config(tmp_path, f"shop{number}"))
        stores.append(Store(config))
    asked: list[int] = []
    wait = ServerApp._wait_for_changes

    async def counted(app: ServerApp, request: Any) -> Any:
        asked.append(1)
        return await wait(app, request)

    with pytest.MonkeyPatch.context() as patch, in_thread([ServedDestination(store.config) for store in stores]) as url:
        patch.setattr(ServerApp, "_wait_for_changes", counted)
        for store in stores:
            store.client = client_config(store.config, tmp_path / "client", url)

        async def run() -> None:
            events = [store.trigger().run() for store in stores]
            waits = [asyncio.ensure_future(following(stream, 60)) for stream in events]
            await asyncio.sleep(3)
            assert len(asked) <= 5, "the requests wait at the server"
            for number in (3, 17):
                stores[number].put()
                assert await waits[number] == {
                    "destination": f"shop{number}",
                    "seq": BatchService(stores[number].config).last_seq(),
                }
            assert sum(wait.done() for wait in waits) == 2
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            for stream in events:
                await stream.aclose()

        asyncio.run(run())


def test_a_server_that_is_away_or_refuses_is_asked_again(
    write_conf: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed, and its token is changed; what came meanwhile is told."""
    monkeypatch.setattr("cdc.airflow.triggers._RETRY_S", 0.2)
    config = with_tokens(load(write_conf() / "shop.yaml"))
    store = Store(config)
    store.put()
    with server_process(config, tmp_path) as server:
        store.client = client_config(config, tmp_path / "client", server.url)
        trigger, said = store.trigger(), []
        monkeypatch.setattr(trigger.log, "warning", lambda text, *values: said.append(text % values))

        async def run() -> None:
            events = trigger.run()
            assert (await following(events, 60))["destination"] == "shop"
            waits = asyncio.ensure_future(following(events, 60))
            server.stop(signal.SIGKILL)
            store.put()
            for name in ("apply.token", "audit.token"):
                (config.file.parent / name).write_text(f"{name:0>32}\n")
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(wait_for, lambda: bool(said), "the refusal")
            assert not waits.done()
            (store.client.file.parent / "client.token").write_text(f"{'apply.token':0>32}\n")
            assert await waits == {"destination": "shop", "seq": BatchService(config).last_seq()}
            await events.aclose()

        asyncio.run(run())
    assert len(said) == 1
    assert "does not serve this destination to the token" in said[0]


def test_a_look_at_a_store_sees_each_growth_and_new_segments(store: Store) -> None:
    look = StoreLook(store.config.store.path)
    assert look.end() is None
    seen: list[object] = [None]
    for _ in range(3):
        store.put()
        end = look.end()
        assert end not in seen
        assert look.end() == end
        seen.append(end)
    folder = segments_folder(store.config.store.path)
    (folder / "000-0000002-00000000004.binlog.index").write_bytes(b"next")
    end = look.end()
    assert end is not None
    assert end[0].name == "000-0000002-00000000004.binlog.index"
    (folder / "000-0000001-00000000004.binlog.index").unlink()
    assert look.end() == end, "retention removes old segments"


def test_a_hundred_idle_stores_take_one_thread_and_two_looks_a_second_each(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/how-to/waiting.md has the share of a core that this takes."""
    store.put(3)
    calls: list[int] = []
    looks: list[StoreLook] = []
    listings: list[Path] = []
    end, listdir = StoreLook.end, os.listdir

    def counted_end(look: StoreLook) -> tuple[Path, int] | None:
        looks.append(look)
        return end(look)

    def counted_listdir(folder: Path) -> list[str]:
        listings.append(folder)
        return listdir(folder)

    monkeypatch.setattr(StoreLook, "end", counted_end)
    monkeypatch.setattr(os, "listdir", counted_listdir)
    watcher = StoreWatcher()
    others = set(threading.enumerate())
    began = time.monotonic()
    ends = [watcher.watch(store.config.store.path, lambda: calls.append(1)) for _ in range(100)]
    time.sleep(3)  # then the times of the folders are old enough to be trusted
    listings.clear()
    time.sleep(2)
    threads = set(threading.enumerate()) - others
    for end_watch in ends:
        end_watch()
    assert len(calls) == 100, "each once, at its beginning"
    assert [thread.name for thread in threads] == ["watch-stores"]
    assert 300 <= len(looks) <= 100 * (2 * (time.monotonic() - began) + 1)
    assert not listings, "a folder that has not changed is not listed"


# --- a fetch that waits


def blocked(config: DestinationConfig, **changes: Any) -> None:
    """Runs a trigger of a fetch to its end."""
    arguments = {
        "conf_file": str(config.file),
        "owner": OWNER,
        "until": None,
        "deadline": (datetime.now(UTC) + timedelta(seconds=30)).isoformat(),
        **changes,
    }
    trigger = serialized(TowpathBatchTrigger(**arguments))

    async def run() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    events = asyncio.run(asyncio.wait_for(run(), 60))
    assert events == [{"deadline": arguments["deadline"]}]


def test_the_trigger_of_a_fetch_ends_when_the_way_is_free(placed: Store) -> None:
    placed.put(2)
    service = BatchService(placed.config)
    lease = service.get("cli:elsewhere:x")
    assert lease is not None
    timer = threading.Timer(1.5, lambda: service.rollback(lease.batch, lease.token))
    timer.start()
    began = time.monotonic()
    blocked(placed.client)
    assert 1.4 < time.monotonic() - began < 15
    timer.join()


def test_the_trigger_of_a_fetch_ends_at_its_deadline(store: Store) -> None:
    store.put(2)
    assert BatchService(store.config).get("cli:elsewhere:x") is not None
    soon = datetime.now(UTC) + timedelta(seconds=1)
    blocked(store.config, deadline=soon.isoformat())
    assert datetime.now(UTC) >= soon


def test_the_trigger_of_a_fetch_leaves_a_broken_configuration_to_the_task(store: Store) -> None:
    store.config.file.write_text("sauce: {}\n")
    began = time.monotonic()
    blocked(store.config)
    assert time.monotonic() - began < 20


def fetch(folder: Path, **options: Any) -> TowpathFetchOperator:
    return TowpathFetchOperator(task_id="fetch", conf_file=str(folder / "shop.yaml"), batch_owner=OWNER, **options)


def test_a_fetch_waits_in_the_triggerer_and_goes_on(write_conf: Write, pipeline: FakePipeline) -> None:
    task = fetch(write_conf(), deferrable=True)
    pipeline.obstacles = [LeaseHeldError("batch 1 is held"), LeaseHeldError("batch 1 is held"), None]
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(CONTEXT)
    assert isinstance(deferred.value.trigger, TowpathBatchTrigger)
    assert deferred.value.trigger.owner == OWNER
    assert deferred.value.method_name == "resume"
    event = {"deadline": deferred.value.trigger.deadline}
    with pytest.raises(TaskDeferred) as deferred_again:
        task.resume(CONTEXT, event)
    assert deferred_again.value.trigger.serialize() == deferred.value.trigger.serialize(), "the deadline stays"
    assert task.resume(CONTEXT, event)["batch"] == 1
    assert pipeline.calls == ["fetch"]


def test_a_fetch_that_waited_to_its_deadline_raises_what_is_in_the_way(
    write_conf: Write, pipeline: FakePipeline
) -> None:
    task = fetch(write_conf(), deferrable=True)
    pipeline.obstacles = [StoreIncompleteError("complete up to 09:59 only")]
    with pytest.raises(StoreIncompleteError, match="09:59"):
        task.resume(CONTEXT, {"deadline": datetime.now(UTC).isoformat()})
    assert pipeline.calls == []


def test_a_fetch_defers_only_if_it_is_told_to(
    write_conf: Write, pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.obstacles = [LeaseHeldError("batch 1 is held")]
    assert fetch(write_conf()).execute(CONTEXT)["batch"] == 1, "Airflow's default is not to"
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert fetch(write_conf()).deferrable
    assert not fetch(write_conf(), deferrable=False).deferrable
    assert getattr(build_dags(write_conf())["apply_shop"].get_task("fetch"), "deferrable")  # noqa: B009


def test_a_deferred_fetch_in_a_dag(
    write_conf: Write,
    pipeline: FakePipeline,
    run_dag: Callable[..., States],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Airflow's own test runner runs the trigger, too."""
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    monkeypatch.setattr(TowpathBatchTrigger, "_is_blocked", lambda self: False)
    pipeline.obstacles = [StoreIncompleteError("not yet"), None]
    states = run_dag(build_dags(write_conf(until="interval_end"))["apply_shop"], datetime(2026, 11, 21, tzinfo=UTC))
    assert states["run"] == "success"
    assert pipeline.acked == [1]


# --- capture elsewhere


@pytest.fixture
def running(store: Store) -> Iterator[Callable[[int], None]]:
    """A capture that holds the store's lock, and reports when it is asked to."""
    store.put()
    path = store.config.store.path
    lock = StoreLock(path)

    def report(second: int) -> None:
        write_capture_state(path, CaptureState(os.getpid(), True, "binlog.000001", 99, None, 0, second * 1_000_000))

    yield report
    lock.release()


def limit(config: DestinationConfig, seconds: float) -> None:
    config.file.write_text(f"{config.file.read_text()}metrics: {{unhealthy_after: {seconds}}}\n")


def watched(config: DestinationConfig, for_s: float, report: Callable[[int], None] | None = None) -> Any:
    """Runs the trigger that watches a capture to its end, and returns its event."""
    trigger = serialized(TowpathCaptureTrigger(conf_file=str(config.file), watch_for_s=for_s, poll_s=0.1))

    async def reports() -> None:
        for second in range(1000):
            if report is not None:
                report(second)
            await asyncio.sleep(0.05)

    async def run() -> Any:
        reporting = asyncio.ensure_future(reports())
        event = await following(trigger.run(), 60)
        reporting.cancel()
        return event

    return asyncio.run(run())


def test_a_live_capture_is_watched_to_the_end(store: Store, running: Callable[[int], None]) -> None:
    limit(store.config, 0.8)
    event = watched(store.config, 2, running)
    assert (event["ok"], "is at binlog.000001:99" in event["text"]) == (True, True)


def test_a_stuck_capture_is_told_at_once(store: Store, running: Callable[[int], None]) -> None:
    limit(store.config, 0.8)
    running(1)
    began = time.monotonic()
    event = watched(store.config, 60)
    assert (event["ok"], "has not moved from binlog.000001:99" in event["text"]) == (False, True)
    assert time.monotonic() - began < 20


def test_a_broken_configuration_is_told(store: Store) -> None:
    store.config.file.write_text("sauce: {}\n")
    event = watched(store.config, 60)
    assert (event["ok"], "sauce: unknown key" in event["text"]) == (False, True)


def test_the_watch_over_a_capture_fails_its_task_without_a_retry(write_conf: Write) -> None:
    task = TowpathCaptureWatchOperator(task_id="capture", conf_file=str(write_conf() / "shop.yaml"), watch_for_s=3600)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute({})
    assert isinstance(deferred.value.trigger, TowpathCaptureTrigger)
    task.resume({}, {"ok": True, "text": "shop: at binlog.000001:4."})
    with pytest.raises(AirflowFailException, match="no capture runs"):
        task.resume({}, {"ok": False, "text": "shop: no capture runs, for 61 s."})


def test_a_watch_over_a_broken_configuration_fails(write_conf: Write) -> None:
    file = str(write_conf(text="sauce: {}\n") / "shop.yaml")
    with pytest.raises(AirflowFailException, match="sauce: unknown key"):
        TowpathCaptureWatchOperator(task_id="capture", conf_file=file, watch_for_s=1).execute({})


# --- the DAGs


def with_airflow(write_conf: Write, settings: str) -> dict[str, DAG]:
    file = write_conf() / "shop.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text[: text.index("airflow:")] + f"airflow: {{{settings}}}\n", encoding="utf-8")
    return build_dags(file.parent)


@pytest.mark.parametrize("every", ["5m", "'*/5 * * * *'"])
def test_changes_start_runs_beside_the_schedule(write_conf: Write, airflow_database: None, every: str) -> None:
    dag = with_airflow(write_conf, f"apply_every: {every}, start: data, start_pause: 7s")["apply_shop"]
    assert isinstance(dag.schedule, AssetOrTimeSchedule)
    (asset,) = dag.schedule.asset_condition.objects  # type: ignore[attr-defined]
    (watcher,) = asset.watchers
    assert isinstance(watcher.trigger, TowpathStoreTrigger)
    arguments = watcher.trigger.serialize()[1]
    assert arguments["pause_s"] == 7
    assert arguments["store"] == str(load(Path(arguments["conf_file"])).store.path)
    from tests.support.airflows import store_dag

    store_dag(dag, Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]))


def test_the_schedule_alone_starts_runs_by_default(write_conf: Write) -> None:
    assert with_airflow(write_conf, "apply_every: 5m")["apply_shop"].schedule == timedelta(minutes=5)


def test_the_capture_dag_watches_a_capture_elsewhere(write_conf: Write) -> None:
    dag = with_airflow(write_conf, "capture: external, capture_for: 30m")["capture_shop"]
    task = dag.get_task("capture")
    assert isinstance(task, TowpathCaptureWatchOperator)
    assert (task.watch_for_s, str(dag.schedule)) == (1800, "@continuous")

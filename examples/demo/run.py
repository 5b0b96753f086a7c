"""The steps of the demo, from an empty folder to the comparison of Delta with SELECT."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import psutil
from rich.markup import escape

from examples.demo import setup
from examples.demo.airflow import USER, AirflowError, AirflowServer
from examples.demo.compare import compare, verdict
from examples.demo.screen import Screen, Step
from examples.demo.setup import APPLY_EVERY_S, CAPTURE_FOR_S, REPOSITORY, Command, SetupError
from examples.demo.shop import ALTER, TABLES, Account, Shop

NAME = "shop"
CAPTURE, SNAPSHOT, APPLY = f"capture_{NAME}", f"snapshot_{NAME}", f"apply_{NAME}"
STEP_LIMIT_S = 3600.0
"""Limit for each wait. A busy machine takes long, and each step shows what it waits for."""
KILLS = 20
_STATUS_EVERY_S = 4.0
OVER = ("success", "failed")
TASKS = ("fetch", "merge", "finalize")
Run = dict[str, Any]


class Demo:
    """One run of the demo."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.shop: Shop | None = None
        self.airflow: AirflowServer | None = None
        self._drop_database = False
        self._stop_database: Callable[[], None] | None = None

    def run(self) -> int:
        """Runs the demo and returns the exit code."""
        work = setup.work_folder()
        with self.screen.step("Downloads, once: Delta's jars, MariaDB") as step:
            setup.fetch_all(step.update)
        self.screen.start_clock()
        account, shop = self._open_shop(work)
        command = self._configure(work, account, shop)
        with self.screen.step("Airflow starts (`airflow standalone`)") as step:
            airflow = self.airflow = AirflowServer(
                work / "airflow", REPOSITORY / "dags", command.conf, {"CDC_SOURCE_PASSWORD": account.password}
            )
            airflow.start(step.update)
            self._wait_for_dags(airflow, step)
        self._say_where(airflow)
        with self.screen.step("The capture DAG reads the shop's changes into the store") as step:
            airflow.unpause(CAPTURE)
            self._until(step, lambda: self._captured(command, step), every_s=_STATUS_EVERY_S)
        with self.screen.step("The snapshot DAG fills the tables, while the shop goes on trading") as step:
            airflow.unpause(SNAPSHOT)
            self._until(step, lambda: self._filled(airflow, command, step), every_s=_STATUS_EVERY_S)
        with self.screen.step("The apply DAG merges what has changed since: fetch >> merge >> finalize") as step:
            airflow.unpause(APPLY)
            good = self._good_run(airflow, step, after=None)
        seq = self._acked(command)
        self.screen.say(f"    run {good['dag_run_id']} succeeded; acked up to seq {seq}")
        self._fail_once(airflow, command, shop)
        self._catch_up(shop, account, command)
        code = self._judge(shop, work / "lake", command)
        self._epilogue(airflow, shop, work)
        return code

    def _open_shop(self, work: Path) -> tuple[Account, Shop]:
        account = setup.given_account()
        if account is None:
            with self.screen.step("A MariaDB server starts"):
                account, self._stop_database = setup.start_database(work)
            name = NAME
        else:
            name = f"towpath_demo_{token_hex(3)}"
        with self.screen.step(f"The database {name} is filled: {', '.join(TABLES)}"):
            shop = self.shop = Shop(account, name)
            self._drop_database = True
            shop.create()
            shop.fill()
        shop.open()
        self.screen.say("    live traffic begins: about 20 transactions a second")
        return account, shop

    def _configure(self, work: Path, account: Account, shop: Shop) -> Command:
        command = Command(work / "conf", {"CDC_SOURCE_PASSWORD": account.password})
        with self.screen.step("`cdc init` writes the configuration"):
            pattern = rf"{shop.name}\..*"
            command("init", account.url(), "--target", "./lake", "--tables", pattern, "--name", NAME)
            changes = {
                "batch": {"max_wait_s": "2"},
                "airflow": {
                    "apply_every": f"{APPLY_EVERY_S}s",
                    "capture_for": f"{CAPTURE_FOR_S}s",
                    # The failure below must fail its run, so there is no retry inside it.
                    "retries": "0",
                },
                "spark": {"master": "'local[2]'"},
            }
            setup.adjust(command.conf / f"{NAME}.yaml", changes)
        with self.screen.step("`cdc check` examines source, store and target"):
            command("check", NAME)
        self.screen.say(f"    {command.conf / (NAME + '.yaml')}", is_public=False)
        return command

    def _wait_for_dags(self, airflow: AirflowServer, step: Step) -> None:
        step.update("reading the DAGs")

        def has_dags() -> bool:
            errors = airflow.import_errors()
            if errors:
                raise AirflowError(f"Airflow could not load the DAGs: {errors[0].strip().splitlines()[-1]}")
            return {CAPTURE, SNAPSHOT, APPLY} <= set(airflow.dag_ids())

        self._until(step, has_dags)

    def _say_where(self, airflow: AirflowServer) -> None:
        self.screen.say(
            f"    web page: [bold]{airflow.url}[/bold]  user {USER}, password {escape(airflow.password)}",
            is_public=False,
        )

    def _captured(self, command: Command, step: Step) -> bool:
        status = command.status(NAME)
        count = (status["store"] or {}).get("transactions") or 0
        step.update(f"{count} transactions in the store")
        return bool(status["capture"]["running"]) and count > 0

    def _filled(self, airflow: AirflowServer, command: Command, step: Step) -> bool:
        """Whether every table has been loaded. Raises AirflowError if a run of the snapshot DAG fails."""
        runs = airflow.runs(SNAPSHOT)
        failed = [run for run in runs if run["state"] == "failed"]
        if failed:
            raise AirflowError(f"Run {failed[0]['dag_run_id']} of {SNAPSHOT} failed; see {airflow.url}")
        status = command.status(NAME)
        reading = {table["table"]: table.get("rows", 0) for table in status["snapshots"]}
        loaded = [table for table in status["tables"] if table["delta_version"] is not None]
        step.update(f"{len(loaded)} of {len(TABLES)} tables, {sum(reading.values())} rows read")
        parked = [entry for subscription in status["subscriptions"] for entry in subscription["parked"]]
        return len(loaded) == len(TABLES) and not parked and any(run["state"] == "success" for run in runs)

    def _acked(self, command: Command) -> int:
        return int(command.status(NAME)["subscriptions"][0]["acked_seq"])

    def _next_run(self, airflow: AirflowServer, step: Step, after: str | None) -> Run:
        """Returns the first run later than ``after`` that has ended and has merged a batch."""
        runs: list[Run] = []

        def over() -> bool:
            for run in _later(airflow.runs(APPLY), after):
                tasks = airflow.tasks(APPLY, run["dag_run_id"])
                if run["state"] not in OVER:
                    step.update(_progress(tasks))
                elif tasks.get("merge") not in ("skipped", None):
                    runs.append(run)
                    return True
            return False

        self._until(step, over)
        return runs[0]

    def _good_run(self, airflow: AirflowServer, step: Step, after: str | None) -> Run:
        """Returns the next run. Raises AirflowError if it fails."""
        run = self._next_run(airflow, step, after)
        if run["state"] != "success":
            tasks = airflow.tasks(APPLY, run["dag_run_id"])
            raise AirflowError(
                f"Run {run['dag_run_id']} of {APPLY} ended as {run['state']}: {tasks}; see {airflow.url}"
            )
        return run

    def _fail_once(self, airflow: AirflowServer, command: Command, shop: Shop) -> None:
        """Kills the Spark driver in the middle of a merge, and shows that the batch is rolled back. Then closes the shop, so
        that the next run has all its changes."""
        with self.screen.step("A merge fails: its Spark driver is killed with SIGKILL") as step:
            run_id, seq = self._killed_run(airflow, command, step)
            tasks = airflow.tasks(APPLY, run_id)
        states = ", ".join(f"{task} {tasks[task]}" for task in TASKS)
        self.screen.say(f"    run {run_id} [red]failed[/red]: {states}")
        if self._acked(command) != seq:
            raise SetupError("A run failed, but its batch was acked.")
        self.screen.say(f"    finalize rolled the batch back: the acked position is still seq {seq}, nothing is lost")
        with self.screen.step(f"The shop alters its largest table: {ALTER}"):
            shop.alter()
            time.sleep(2)  # orders that have the new column
        shop.close()
        self.screen.say("    the shop closes: no more traffic")
        with self.screen.step("The next run takes the same changes again") as step:
            good = self._good_run(airflow, step, after=run_id)
        self.screen.say(
            f"    run {good['dag_run_id']} [green]succeeded[/green]; acked up to seq {self._acked(command)}"
        )

    def _killed_run(self, airflow: AirflowServer, command: Command, step: Step) -> tuple[str, int]:
        """Returns the id of a run that failed because its driver was killed, and the acked seq before it."""
        tried: list[str] = []
        for _ in range(KILLS):
            self._until(step, lambda: self._kill_driver(airflow, step, tried))
            run_id = tried[-1]
            # Runs come one after the other, so no other batch is acked during this run.
            seq = self._acked(command)
            state = self._end_of(airflow, step, run_id)
            if state == "failed":
                return run_id, seq
            step.update("the merge ended before the kill; trying again")
        raise SetupError(f"{KILLS} merges ended before their drivers could be killed.")

    def _kill_driver(self, airflow: AirflowServer, step: Step, tried: list[str]) -> bool:
        """Kills the driver of a run that works on its batch, and records the run. Returns whether it killed one."""
        for run in airflow.runs(APPLY):
            run_id = str(run["dag_run_id"])
            if run["state"] in OVER or run_id in tried:
                continue
            for driver in airflow.working_drivers(APPLY, run_id):
                try:
                    driver.kill()
                except psutil.NoSuchProcess:
                    continue
                step.update(f"kill -9 {driver.pid}; waiting for the end of its run")
                tried.append(run_id)
                return True
            step.update(_progress(airflow.tasks(APPLY, run_id)))
            return False
        step.update("waiting for a run")
        return False

    def _end_of(self, airflow: AirflowServer, step: Step, run_id: str) -> str:
        """Waits for the end of the run and returns its state."""
        states: list[str] = []

        def over() -> bool:
            states[:] = [str(r["state"]) for r in airflow.runs(APPLY) if r["dag_run_id"] == run_id]
            step.update(f"waiting for the end of the run: {_progress(airflow.tasks(APPLY, run_id))}")
            return not states or states[0] in OVER

        self._until(step, over)
        if not states:
            raise AirflowError(f"Run {run_id} of {APPLY} is no longer among the latest runs; see {airflow.url}")
        return states[0]

    def _catch_up(self, shop: Shop, account: Account, command: Command) -> None:
        with self.screen.step("The tables catch up with the last change") as step:
            end = setup.position_of(account)

            def level() -> bool:
                status = command.status(NAME)
                source, reader = status["source"], status["subscriptions"][0]
                behind = reader["behind"]["transactions"]
                step.update(f"{behind} transactions to go")
                position = (source["file"], source["pos"])
                return position >= end and behind == 0 and not reader["outstanding"]

            self._until(step, level, every_s=_STATUS_EVERY_S)
        self.screen.say(f"    {shop.transactions} transactions of live traffic so far")

    def _judge(self, shop: Shop, lake: Path, command: Command) -> int:
        with self.screen.step("Delta (read with the deltalake library) is compared with SELECT"):
            compared = compare(shop, lake)
        for item in compared:
            if item.source and item.delta:
                self.screen.console.print(item.sample())
        self.screen.show(verdict(compared))
        for item in compared:
            if (pair := item.first_difference()) is not None:
                self.screen.say(f"[red]{item.table}[/red]: SELECT {escape(str(pair[0]))}, Delta {escape(str(pair[1]))}")
        with self.screen.step("`cdc verify` proves that nothing is missing: commits, and checksums of both sides"):
            proof = command("verify", NAME)
        self.screen.say(escape(proof.rstrip()))
        equal = all(item.equal for item in compared)
        word = "[bold green]Equal.[/bold green]" if equal else "[bold red]Not equal.[/bold red]"
        self.screen.say(f"{word} It took {self.screen.elapsed_s():.0f} s.")
        self.screen.draw()
        return 0 if equal else 1

    def _epilogue(self, airflow: AirflowServer, shop: Shop, work: Path) -> None:
        keep = os.environ.get("CDC_DEMO_KEEP") == "1"
        if sys.stdin.isatty() or keep:
            shop.open()
            self.screen.say("Airflow keeps running, and the traffic continues.")
            self._say_where(airflow)
        self.screen.say(f"    tables: {work / 'lake'}    configuration: {work / 'conf'}", is_public=False)
        if sys.stdin.isatty():
            self.screen.console.input("[bold]Press Enter (or Ctrl-C) to stop everything.[/bold] ")
        elif keep:
            self.screen.say(f"Stop it with Ctrl-C, or: kill {os.getpid()}")
            threading.Event().wait()

    def _until(self, step: Step, condition: Callable[[], bool], every_s: float = 1.0) -> None:
        limit = time.monotonic() + STEP_LIMIT_S
        while not condition():
            if self.shop is not None and self.shop.error is not None:
                raise SetupError(f"The shop's traffic ended: {self.shop.error}")
            if time.monotonic() > limit:
                log = f" Airflow's log: {self.airflow.log}." if self.airflow else ""
                raise AirflowError(f"{step.title}: not done after {STEP_LIMIT_S:.0f} s.{log}")
            time.sleep(every_s)

    def clean_up(self) -> None:
        """Ends what the demo started: traffic, Airflow, its database (or server). Its folder stays."""
        if self.shop is not None:
            self.shop.halt()
        if self.airflow is not None:
            with self.screen.step("Airflow stops"):
                self.airflow.stop()
        if self._stop_database is not None:
            with self.screen.step("The database server stops"):
                self._stop_database()
        elif self.shop is not None and self._drop_database:
            with self.screen.step(f"The database {self.shop.name} is dropped"):
                self.shop.drop()


def _later(runs: list[Run], after: str | None) -> list[Run]:
    """Returns the runs after ``after``, oldest first; all of them if the list no longer has it."""
    ids = [str(run["dag_run_id"]) for run in runs]
    return runs[ids.index(after) + 1 :] if after in ids else runs


def _progress(tasks: dict[str, str | None]) -> str:
    states = [f"{task} {tasks[task]}" for task in TASKS if tasks.get(task)]
    return ", ".join(states) or "a run begins"

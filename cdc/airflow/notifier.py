"""Tells the handlers of a destination's ``alarms`` what happens in Airflow: a run has failed, or is late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseNotifier

from cdc.airflow.compat import conf
from cdc.airflow.configuration import read_config
from cdc.base.errors import CdcError
from cdc.watch.alarms.notice import Notice


class TowpathNotifier(BaseNotifier):
    """Sends one message by the webhook, mail and command of a configuration's section ``alarms``.

    As ``on_failure_callback`` of a DAG or a task, of your own ones too, and as the callback of a ``DeadlineAlert``:
    ``AsyncCallback(TowpathNotifier, kwargs={"conf_file": …})``. Handlers that do not take it are named in the log.

    ``conf_file``: the path of ``DEST.yaml`` (templated). ``summary``: the sentence (templated); by default it names the
    run, or the task.
    """

    template_fields: Sequence[str] = ("conf_file", "summary")

    def __init__(self, *, conf_file: str, summary: str = "", context: Any = None) -> None:
        super().__init__(context=context)
        self.conf_file = conf_file
        self.summary = summary

    def notify(self, context: Any) -> None:
        """Sends the message, and returns when every handler has taken it or its time is over."""
        from cdc.watch.alarms.watch import send_all  # loads NumPy, which files of DAGs do without

        try:
            config = read_config(self.conf_file)
            errors = send_all(config, self._notice(config.name, context))
        except CdcError as error:
            self.log.error("Nobody was told: %s", error)
            return
        for handler, reason in errors.items():
            if reason is not None:
                self.log.error("The %s was not told: %s", handler, reason)

    async def async_notify(self, context: Any) -> None:
        """As :meth:`notify`, in Airflow's triggerer."""
        await asyncio.to_thread(self.notify, context or self.context)

    def _notice(self, destination: str, context: Mapping[str, Any]) -> Notice:
        alarm, what = ("airflow_run_late", "is late") if "deadline" in context else ("airflow_run_failed", "has failed")
        summary = self.summary or f"{_run_of(context)} {what}."
        return Notice.once("reported", destination, alarm, "critical", summary=summary, detail=_detail(context))


def _run_of(context: Mapping[str, Any]) -> str:
    """Returns the task, or the run of a DAG, that a context of Airflow is about, in words."""
    dag_id, run_id = _ids(context)
    ti = context.get("ti")
    # A run's callback has the task that ended last; that of a task has the error.
    task = f"The task {ti.task_id} of " if ti is not None and "exception" in context else ""
    return f"{task or 'The run '}{dag_id} {run_id}".strip()


def _ids(context: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the ids of DAG and run. The scheduler writes runs as mappings, in contexts for the triggerer."""
    run, dag = context.get("dag_run"), context.get("dag")
    values = run if isinstance(run, Mapping) else vars(run) if run is not None else {}
    dag_id = values.get("dag_id") or getattr(dag, "dag_id", "")
    run_id = values.get("run_id") or values.get("dag_run_id") or context.get("run_id") or ""
    return str(dag_id), str(run_id)


def _detail(context: Mapping[str, Any]) -> str:
    """Returns why, and the address of the run."""
    dag_id, run_id = _ids(context)
    base, why = conf.get("api", "base_url", fallback="") or "", context.get("exception") or context.get("reason") or ""
    address = f"{base.rstrip('/')}/dags/{quote(dag_id)}/runs/{quote(run_id)}" if base and dag_id and run_id else ""
    return " ".join(filter(None, (str(why), address)))

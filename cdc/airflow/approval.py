"""The operator that asks a person before a loss is accepted. Needs Airflow 3.1: see
:func:`cdc.airflow.compat.has_approvals`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator

from cdc.airflow import texts, xcom
from cdc.airflow.base import DestinationOperator
from cdc.airflow.compat import AirflowFailException, AirflowSkipException
from cdc.airflow.table_operators import PLAN, SUMMARY
from cdc.lake import pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVE, REJECT = "Approve", "Reject"
"""The answers, as Airflow's own approvals have them."""
_ASKED = "asked"
"""The key of the XCom with the loss that the question of this try shows."""


class TowpathAcceptOperator(DestinationOperator, HITLOperator):
    """Shows a person in Airflow what is lost, waits without a slot, and accepts exactly that, or nothing.

    ``plan_task_id``: the task whose plan says for which tables; none: for what is lost before the store. What was
    approved is compared with what would be accepted when the answer comes. If that is something else, nothing is
    changed, and the task fails. It has no retries: Airflow keeps the text of a question for all tries of a task, so
    that a second try would show a loss that may be none any more. A new run asks anew.
    """

    template_fields: Sequence[str] = ("conf_file",)  # what is shown is no template: names may have braces

    def __init__(self, *, plan_task_id: str, **kwargs: Any) -> None:
        kwargs |= {"execution_timeout": None, "retries": 0}  # the timeout would end the wait
        super().__init__(subject="Changes are lost", options=[APPROVE, REJECT], **kwargs)
        self.plan_task_id = plan_task_id

    def execute(self, context: Context) -> Any:
        """Asks. Raises AirflowFailException if nothing is lost any more, the plan is not there, or this is not the
        task's first try."""
        if context["ti"].try_number > 1:
            raise AirflowFailException(
                f"Airflow would show the question of an earlier try. Trigger {self.dag_id} again to be asked anew."
            )
        asked: Mapping[str, Any] | None = context["ti"].xcom_pull(task_ids=self.plan_task_id, key=PLAN)
        if asked is None:
            raise AirflowFailException(f"The task {self.plan_task_id} left no plan. Clear the whole run.")
        with xcom.airflow_errors():
            config = self._config()
            loss = pipeline.find_loss(config, asked["tables"])
        self.subject = f"Changes of {config.name} are lost"
        self.body = texts.loss_summary(loss)
        self.log.info("Asks a person:\n%s", self.body)
        context["ti"].xcom_push(key=_ASKED, value=loss)
        context["ti"].xcom_push(key=SUMMARY, value=self.body)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Returns the gaps that were accepted, and by whom. Raises AirflowSkipException after a rejection,
        AirflowFailException if what was approved is not what would be accepted."""
        answer = super().execute_complete(context, event)
        user = answer["responded_by_user"]
        person = "nobody" if user is None else user["name"]
        if answer["chosen_options"] != [APPROVE]:
            raise AirflowSkipException(f"{person} has rejected it: nothing was changed.")
        loss = context["ti"].xcom_pull(task_ids=self.task_id, key=_ASKED)
        with xcom.airflow_errors():
            gaps = pipeline.accept_loss(self._config(), loss)
        for gap in gaps:
            self.log.info(
                "%s has approved, and it is accepted: %s may lack the transactions after %d up to %d.",
                person,
                gap.table or "all tables",
                gap.after_seq,
                gap.until_seq,
            )
        return {"gaps": [gap.model_dump(mode="json") for gap in gaps], "approved_by": person}

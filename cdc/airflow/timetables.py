"""The schedule of the intervals DAG, for the scheduler. The plugin registers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.timetables.base import TimeRestriction
from airflow.timetables.trigger import CronPartitionTimetable

if TYPE_CHECKING:
    from airflow.timetables.base import DagRunInfo


class IntervalTimetable(CronPartitionTimetable):
    """A run at the end of each interval, whose partition is the interval.

    The first run is for the interval that ended last. From then on each interval gets a run, also those that end while
    the scheduler is down or the DAG is paused; Airflow offers only one or the other.
    """

    @property
    def summary(self) -> str:
        """The schedule in words, for the list of DAGs."""
        return self.description or super().summary

    def next_dagrun_info_v2(
        self, *, last_dagrun_info: DagRunInfo | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        if last_dagrun_info is None:
            restriction = TimeRestriction(earliest=None, latest=restriction.latest, catchup=restriction.catchup)
        return super().next_dagrun_info_v2(last_dagrun_info=last_dagrun_info, restriction=restriction)

"""The plugin of Airflow: the pages of :mod:`cdc.watch.page`, in the API server, under **Towpath** in its navigation;
and the schedule of the intervals DAG.

Every process of Airflow imports this module, so it imports little; the pages are built at the first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/towpath"
"""The path of the pages below Airflow's own address."""


class _Pages:
    """The ASGI application of the pages."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            from cdc.airflow.pages import application

            self._app = application()
        await self._app(scope, receive, send)


def _timetables() -> list[Any]:
    """Returns the timetables that the scheduler has to know; before Airflow 3.3 there is none."""
    try:
        from cdc.airflow.timetables import IntervalTimetable
    except ImportError:
        return []
    return [IntervalTimetable]


class TowpathPlugin(AirflowPlugin):
    """Adds the pages and the schedule. From Airflow 3.1 on its navigation has a link to the pages."""

    name = "towpath"
    # Airflow's class declares these without ClassVar.
    fastapi_apps: list[Any] = [{"app": _Pages(), "url_prefix": PREFIX, "name": "Towpath"}]  # noqa: RUF012
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Towpath",
            "href": f"{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "towpath",
        }
    ]
    timetables: list[Any] = _timetables()

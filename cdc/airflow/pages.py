"""The pages of the plugin: who may see which destination, and what a page links to in Airflow.

A user sees the destinations whose apply DAG they may read. The API server has to see the folder of the configurations,
and stores, metas and logs of the lake under the paths that these name, or reach them through `cdc server`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse

from cdc.airflow.factory import conf_folder
from cdc.airflow.links import batch_address, configured_table_address
from cdc.base.run_identity import RunIdentity
from cdc.config import DAG_KINDS, destinations
from cdc.lake.writers import run_address
from cdc.watch.page.board import AckedBatch, Board, BoardRow
from cdc.watch.page.render import HEADERS, ExternalLink, destination, message, overview

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

_REMEDIES = {
    "snapshot": ("snapshot", "loads what is parked"),
    "retry": ("apply", "tries what is parked again"),
    "hold": ("backfill", "builds tables again"),
}
"""The DAG that brings parked tables back, and what it does, by what they wait for."""
_TITLES = {401: "Log in first", 403: "Not allowed", 404: "Not found"}


class AirflowLinks:
    """Links to the DAGs of destinations. ``known``: by id, whether each DAG that Airflow has is paused."""

    def __init__(self, base: str, paused_by_id: dict[str, bool]) -> None:
        self._base, self._paused_by_id = base, paused_by_id

    def related(self, row: BoardRow) -> Sequence[ExternalLink]:
        dag_links = []
        for kind in DAG_KINDS:
            dag_id = f"{kind}_{row.name}"
            if dag_id in self._paused_by_id:
                note = "paused" if self._paused_by_id[dag_id] else ""
                dag_links.append(ExternalLink(kind, f"{self._base}/dags/{quote(dag_id)}", note))
        apply = f"apply_{row.name}"
        if apply in self._paused_by_id:
            dag_links.append(ExternalLink("runs", f"{self._base}/dags/{quote(apply)}/runs"))
        return dag_links

    def table(self, config: DestinationConfig, table: str, path: str) -> str:
        return configured_table_address(config, table, path)

    def manifest(self, config: DestinationConfig, batch: AckedBatch) -> str:
        return batch_address(config, batch.batch, batch.manifest)

    def run(self, config: DestinationConfig, run: RunIdentity) -> str:
        return run_address(config, run, self._base) or ""

    def remedy(self, row: BoardRow, due: str) -> ExternalLink | None:
        kind, deed = _REMEDIES[due]
        dag_id = f"{kind}_{row.name}"
        if dag_id not in self._paused_by_id:
            return None
        paused = self._paused_by_id[dag_id]
        text = f"Unpause {dag_id}, which {deed}" if paused else f"Trigger {dag_id}, which {deed}"
        return ExternalLink(text, f"{self._base}/dags/{quote(dag_id)}")


def application() -> FastAPI:
    """Returns the ASGI application."""
    app, board = FastAPI(title="Towpath", docs_url=None, redoc_url=None, openapi_url=None), Board()

    @app.get("/")
    def all_destinations(user: GetUserDep) -> HTMLResponse:
        folder = _folder()
        names = [name for name in destinations(folder) if _may_see(user, name)]
        rows = board.rows(folder / f"{name}.yaml" for name in names)
        return _page(lambda nonce: overview(rows, _links(user, names), nonce, folder=str(folder)))

    @app.get("/{name}")
    def one_destination(name: str, user: GetUserDep) -> HTMLResponse:
        folder = _folder()
        if name not in destinations(folder) or not _may_see(user, name):
            raise HTTPException(404, f"There is no destination {name!r} that you may see.")
        (row,) = board.rows([folder / f"{name}.yaml"], batches=True)
        return _page(lambda nonce: destination(row, _links(user, [name]), nonce))

    @app.exception_handler(HTTPException)
    def failed(request: Request, error: HTTPException) -> HTMLResponse:
        text = "These pages are for users of Airflow." if error.status_code == 401 else str(error.detail)
        title = _TITLES.get(error.status_code, "Error")
        return _page(lambda nonce: message(title, text, nonce), error.status_code)

    return app


def _page(make: Any, status: int = 200) -> HTMLResponse:
    nonce = secrets.token_urlsafe(16)
    headers = {name: value.replace("{nonce}", nonce) for name, value in HEADERS.items()}
    return HTMLResponse(make(nonce), status, headers)


def _folder() -> Path:
    """Returns the folder of the configurations, as DAG files in the DAG folder find it."""
    return conf_folder(str(Path(conf.get("core", "dags_folder")) / "towpath.py"))


def _may_see(user: Any, name: str) -> bool:
    """Whether the user may read the apply DAG of a destination, be it there or not."""
    return bool(get_auth_manager().is_authorized_dag(method="GET", user=user, details=DagDetails(id=f"apply_{name}")))


def _links(user: Any, names: Iterable[str]) -> AirflowLinks:
    base = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return AirflowLinks(base, _dags(user, {f"{kind}_{name}" for name in names for kind in DAG_KINDS}))


def _dags(user: Any, ids: set[str]) -> dict[str, bool]:
    """Returns those of these DAGs that Airflow has and the user may read, each with whether it is paused."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(ids), ~DagModel.is_stale)
        paused_by_id = {str(dag_id): bool(paused) for dag_id, paused in session.execute(query)}
    allowed = get_auth_manager().filter_authorized_dag_ids(dag_ids=set(paused_by_id), user=user, method="GET")
    return {dag_id: paused for dag_id, paused in paused_by_id.items() if dag_id in allowed}

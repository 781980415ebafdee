"""The page's routes: read-only, authorised for each DAG by Airflow, cached by etag, under a strict content security policy."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from airflow_provider.core.errors import RayTrainError
from airflow_provider.plugin import rendering
from airflow_provider.plugin.access import DagRunDep, ReadableDagsDep, TaskInstanceDep
from airflow_provider.plugin.answers import Answer, Answers, facts_key
from airflow_provider.plugin.recorded import RUNS_PER_PAGE, read_recorded, trainings
from airflow_provider.plugin.run_goodput import goodput_of_run, results_told
from airflow_provider.plugin.snapshots import Snapshots, open_reader
from airflow_provider.plugin.view.facts import Problem, Recorded, Seen
from airflow_provider.plugin.view.fallback import seen_from_xcom
from airflow_provider.plugin.view.goodput import goodput_view
from airflow_provider.plugin.view.page import Choice, ExperimentPage, build_page, page_as_json

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_PRIVATE = "private, no-cache"
_CHOICES = ("state", "attempt", "order", "page", "metric", "checkpoint", "attempts_page", "failures_page")
MAX_CHOICE = 1_000
"""Characters; S3 has no longer names."""
Message = MutableMapping[str, Any]
router = APIRouter()


class SecurityHeaders:
    """Adds the policy to every answer, errors included. Plain ASGI: it never holds a body."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        """Wrap the app."""
        self._app = app

    async def __call__(self, scope: Message, receive: Any, send: Callable[[Message], Awaitable[None]]) -> None:
        """Pass the request on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                kept = [(name, value) for name, value in message.get("headers", []) if name.decode() not in _HEADERS]
                message = {**message, "headers": [*kept, *ours]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def recorded_task(key: TaskInstanceDep) -> Recorded:
    """What Airflow recorded of the task instance, after the user's right to it was checked.

    Not through Airflow's SessionDep: that holds a database connection until the answer is made, and so through the wait
    for the bucket. A few readers of a slow bucket would take all of the API server's connections.
    """
    with create_session(scoped=False) as session:
        found = read_recorded(session, key)
    if found is None:
        raise HTTPException(404, f"There is no task instance {key}")
    return found


def reader_choice(request: Request) -> Choice:
    """What the reader chose."""
    return Choice.read(_chosen(request))


def _chosen(request: Request) -> dict[str, str]:
    """Choices as the address has them. Each link of the page repeats them, so what is longer than any name is left out."""
    given = {name: request.query_params.get(name, "") for name in _CHOICES}
    return {name: value for name, value in given.items() if 0 < len(value) <= MAX_CHOICE}


RecordedDep = Annotated[Recorded, Depends(recorded_task)]
ChoiceDep = Annotated[Choice, Depends(reader_choice)]
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]


@router.get("/lineage")
async def lineage(request: Request, recorded: RecordedDep, choice: ChoiceDep) -> Response:
    """The page of one task instance's experiment."""
    seen, problem = await _look(request, recorded)
    return await run_in_threadpool(_lineage_answer, request, recorded, seen, problem, choice)


@router.get("/api/lineage")
async def lineage_as_json(request: Request, recorded: RecordedDep, choice: ChoiceDep) -> Response:
    """The same for programs."""
    seen, problem = await _look(request, recorded)
    return await run_in_threadpool(_json_answer, request, recorded, seen, problem, choice)


@router.get("/run")
def run(request: Request, dag_run: DagRunDep, session: SessionDep, page: PageNumber = 1) -> Response:
    """The trainings of a DAG run; of a single one, its lineage at once."""
    dag_id, run_id = dag_run
    rows, total = trainings(session, dag_ids=[dag_id], run_id=run_id, page=page)
    if total == 1 and rows:
        return Response(
            status_code=303, headers={"location": rendering.lineage_address(rows[0].key), "cache-control": _PRIVATE}
        )

    def make() -> Answer:
        spent, num_told = goodput_of_run(session, dag_id=dag_id, run_id=run_id)
        text = rendering.trainings_page(
            "Trainings of this DAG run",
            rendering.Listed(rows, total, page, _num_pages(total)),
            empty="No task of this DAG run has recorded a Ray Train experiment.",
            link=rendering.Addresses("run", {"dag_id": dag_id, "run_id": run_id, "page": page}),
            goodput=goodput_view(spent),
            num_told=num_told,
        )
        return Answer.of(text)

    key = ("run", dag_run, page, total, rows, results_told(session, dag_id=dag_id, run_id=run_id))
    return _send(request, _answers(request).get(key, make), "text/html; charset=utf-8")


@router.get("/experiments")
def experiments(request: Request, dag_ids: ReadableDagsDep, session: SessionDep, page: PageNumber = 1) -> Response:
    """All trainings of the DAGs that the user may read."""
    rows, total = trainings(session, dag_ids=dag_ids, page=page)
    text = rendering.trainings_page(
        "Ray Train lineage",
        rendering.Listed(rows, total, page, _num_pages(total)),
        empty="No task of a DAG that you may read has recorded a Ray Train experiment.",
        link=rendering.Addresses("experiments", {"page": page}),
    )
    return _answer(request, text, "text/html; charset=utf-8")


@router.get("/static/{name}")
def static(name: str, v: str = "") -> Response:
    """Style sheet, script and icons: the same for everybody, so without a login."""
    asset = rendering.assets().get(name)
    if asset is None:
        raise HTTPException(404, "There is no such file")
    is_pinned = v == asset.digest
    cache = "public, max-age=31536000, immutable" if is_pinned else "public, max-age=3600"
    return Response(asset.body, media_type=asset.media_type, headers={"cache-control": cache})


async def _look(request: Request, recorded: Recorded) -> tuple[Seen | None, Problem | None]:
    """The bucket's word, or the XCom's where the bucket has none."""
    if recorded.unread is not None:
        return None, Problem(
            "What Airflow keeps of this task can't be read",
            f"{recorded.unread} in the backend of the state store; no XCom names an experiment",
            "look at the API server's log and at [workers] state_store_backend",
        )
    snapshots: Snapshots = request.app.state.snapshots
    seen, problem = await snapshots.get(recorded)
    if seen is None and problem is not None and not problem.is_refusal:
        seen = seen_from_xcom(recorded)
    return seen, problem


def _lineage_answer(
    request: Request, recorded: Recorded, seen: Seen | None, problem: Problem | None, choice: Choice
) -> Response:
    def make() -> Answer:
        page, why = _built(recorded, seen, problem, choice)
        link = rendering.Addresses("lineage", rendering.key_query(recorded.key) | chosen)
        text = rendering.lineage_page(rendering.Shown(recorded, seen, page, why), choice, link)
        return Answer.of(text, status=_status(page, why))

    chosen = _chosen(request)
    key = ("page", facts_key(recorded, seen, problem), tuple(chosen.items()))
    return _send(request, _answers(request).get(key, make), "text/html; charset=utf-8")


def _json_answer(
    request: Request, recorded: Recorded, seen: Seen | None, problem: Problem | None, choice: Choice
) -> Response:
    def make() -> Answer:
        page, why = _built(recorded, seen, problem, choice)
        body: dict[str, Any] = (
            page_as_json(page) if page else {"task_state": recorded.state, "experiment": recorded.experiment}
        )
        body["problem"] = {"what": why.what, "known": why.known, "change": why.change} if why else None
        return Answer.of(json.dumps(body, allow_nan=False, ensure_ascii=True), status=_status(page, why))

    key = ("json", facts_key(recorded, seen, problem), tuple(_chosen(request).items()))
    return _send(request, _answers(request).get(key, make), "application/json")


def _answers(request: Request) -> Answers:
    answers: Answers = request.app.state.answers
    return answers


def _built(
    recorded: Recorded, seen: Seen | None, problem: Problem | None, choice: Choice
) -> tuple[ExperimentPage | None, Problem | None]:
    if seen is None:
        return None, problem
    try:
        return build_page(recorded, seen, choice), problem
    except RayTrainError as error:
        return None, Problem(error.what, error.known, error.change)
    except Exception as error:  # noqa: BLE001 - process edge: texts and times in records and XComs are anybody's
        return None, Problem("The lineage can't be shown", f"{type(error).__name__} while drawing what was read")


def _status(page: ExperimentPage | None, problem: Problem | None) -> int:
    return 503 if page is None and problem is not None else 200


def _num_pages(total: int) -> int:
    return max(1, -(-total // RUNS_PER_PAGE))


def _answer(request: Request, text: str, media_type: str) -> Response:
    return _send(request, Answer.of(text), media_type)


def _send(request: Request, answer: Answer, media_type: str) -> Response:
    """With its etag; 304 to a browser that has it already."""
    headers = {"etag": answer.etag, "cache-control": _PRIVATE, "vary": "Cookie, Authorization"}
    known = {part.strip() for part in request.headers.get("if-none-match", "").split(",")}
    if answer.status == 200 and answer.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(answer.body, status_code=answer.status, media_type=media_type, headers=headers)


_SAID = {
    401: ("You are not logged in", "Log in to Airflow, then open this page again."),
    403: ("You may not see this", "It needs Airflow's right to read task instances and XComs of this DAG."),
    404: ("There is nothing here", ""),
    422: ("This address is not complete", "It lacks a part, or has a wrong one."),
}


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, AnyHTTPException) else 422
    heading, text = _SAID.get(status, ("That did not work", ""))
    detail = str(error.detail) if isinstance(error, AnyHTTPException) else text
    headers = {"cache-control": "no-store", **(getattr(error, "headers", None) or {})}
    if "/api/" in request.url.path:
        return JSONResponse({"detail": detail}, status_code=status, headers=headers)
    return HTMLResponse(rendering.message_page(heading, text=text or detail), status_code=status, headers=headers)


def create_app(snapshots: Snapshots | None = None) -> FastAPI:
    """The app that Airflow's API server mounts. Without its own API documentation: that would need no login."""
    app = FastAPI(title="Ray Train lineage", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.snapshots = snapshots or Snapshots(open_reader)
    app.state.answers = Answers()
    app.add_middleware(SecurityHeaders)
    app.add_exception_handler(AnyHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _http_error)
    app.include_router(router)
    return app

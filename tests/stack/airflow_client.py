"""What tests ask of Airflow's REST API, with waiting that tolerates an API server on its way up or down."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx

from tests.stack.process import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import TracebackType
    from typing import Self

RUN_ENDED: Final = frozenset({"success", "failed"})
TASK_ENDED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
Json = dict[str, Any]
_T = TypeVar("_T")
# Said in each line of a task's log already by where it stands.
_LOG_CONTEXT: Final = frozenset(
    {
        "event",
        "timestamp",
        "level",
        "dag_id",
        "task_id",
        "run_id",
        "map_index",
        "ti_id",
        "try_number",
        "ti",
        "filename",
        "lineno",
    }
)


class AirflowClient:
    """A logged-in user of the REST API v2. Times are seconds; a deadline that passes raises `StackError` with what was seen last."""

    def __init__(self, base_url: str, *, username: str, password: str, timeout_s: float = 30.0) -> None:
        """Log in at the first request."""
        self.base_url = base_url
        self._login = {"username": username, "password": password}
        self._token: str | None = None
        self._http = httpx.Client(base_url=base_url, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Self:
        """Use as a context manager to close the connections."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def token(self) -> str:
        """A bearer token of this user."""
        if self._token is None:
            answer = self._http.post("/auth/token", json=self._login)
            answer.raise_for_status()
            self._token = str(answer.json()["access_token"])
        return self._token

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        """Any call below `/api/v2`; the answer is its JSON. Raises `httpx.HTTPStatusError` with the body in the message."""
        headers = {"Authorization": f"Bearer {self.token()}", "Accept": "application/json"}
        answer = self._http.request(method, f"/api/v2{path}", headers=headers, **arguments)
        if answer.is_error:
            message = f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
            raise httpx.HTTPStatusError(message, request=answer.request, response=answer)
        return answer.json() if answer.content else None

    # Dags and their runs

    def health(self) -> dict[str, str | None]:
        """The status of each component ("healthy", "unhealthy", or None where none was ever seen)."""
        return {name: facts["status"] for name, facts in self.request("GET", "/monitor/health").items()}

    def import_errors(self) -> str:
        """The parse errors of all Dag files, as text; empty when there are none."""
        errors = self.request("GET", "/importErrors")["import_errors"]
        return "\n".join(f"{error['filename']}:\n{error['stack_trace']}" for error in errors)

    def wait_for_dag(self, dag_id: str, *, timeout_s: float = 60.0) -> Json:
        """Wait until the Dag is parsed; an import error fails at once."""

        def parsed() -> Json | None:
            try:
                return dict(self.request("GET", f"/dags/{dag_id}"))
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.NOT_FOUND:
                    raise
            if errors := self.import_errors():
                raise StackError(errors)
            return None

        return self._poll(parsed, timeout_s=timeout_s, what=f"Dag {dag_id} to be parsed")

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run the Dag."""
        self.request("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def trigger(self, dag_id: str, *, conf: Json | None = None, run_id: str | None = None) -> str:
        """Start a dag run; the answer is its id."""
        body: Json = {"logical_date": None, "conf": conf or {}}
        if run_id is not None:
            body["dag_run_id"] = run_id
        return str(self.request("POST", f"/dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def run_dag(self, dag_id: str, *, conf: Json | None = None, timeout_s: float = 60.0) -> str:
        """Wait until the Dag is parsed, unpause it, start a run."""
        self.wait_for_dag(dag_id, timeout_s=timeout_s)
        self.unpause(dag_id)
        return self.trigger(dag_id, conf=conf)

    def dag_run(self, dag_id: str, run_id: str) -> Json:
        """The dag run."""
        return dict(self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}"))

    def set_dag_run_state(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark the dag run `success` or `failed`, as the UI's button does."""
        self.request("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"state": state})

    def wait_for_dag_run(
        self, dag_id: str, run_id: str, *, states: Collection[str] = RUN_ENDED, timeout_s: float = 120.0
    ) -> str:
        """Wait until the dag run's state is one of `states`; the answer is that state."""
        seen: list[str] = []

        def reached() -> str | None:
            seen[:] = [self.dag_run(dag_id, run_id)["state"]]
            if seen[0] in states:
                return seen[0]
            if seen[0] in RUN_ENDED:
                message = f"{dag_id} {run_id} ended {seen[0]}, waited for {sorted(states)}"
                raise StackError(message)
            return None

        return self._poll(reached, timeout_s=timeout_s, what=f"{dag_id} {run_id} in {sorted(states)}", seen=seen)

    # Task instances

    def task_instances(self, dag_id: str, run_id: str) -> list[Json]:
        """All task instances of a dag run."""
        return list(self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"])

    def task_instance(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> Json:
        """One task instance: `state`, `try_number`, `max_tries`, ..."""
        return dict(self.request("GET", self._path(dag_id, run_id, task_id, map_index)))

    def tries(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> list[Json]:
        """Every try of a task instance, the oldest first."""
        answer = self.request("GET", f"{self._path(dag_id, run_id, task_id, map_index)}/tries")
        return sorted(answer["task_instances"], key=lambda one: int(one["try_number"]))

    def wait_for_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        *,
        states: Collection[str] = TASK_ENDED,
        try_number: int | None = None,
        map_index: int = -1,
        timeout_s: float = 120.0,
    ) -> Json:
        """Wait until the task instance is in one of `states` (in that try, if one is named); the answer is the task instance."""
        seen: list[str] = []

        def reached() -> Json | None:
            found = self.task_instance(dag_id, run_id, task_id, map_index=map_index)
            seen[:] = [f"{found['state']} in try {found['try_number']}"]
            right_try = try_number is None or found["try_number"] == try_number
            return found if right_try and found["state"] in states else None

        return self._poll(reached, timeout_s=timeout_s, what=f"{dag_id}.{task_id} in {sorted(states)}", seen=seen)

    def clear(
        self,
        dag_id: str,
        run_id: str,
        *,
        task_ids: Sequence[str] | None = None,
        only_failed: bool = False,
        include_downstream: bool = False,
    ) -> list[Json]:
        """Clear task instances of a dag run (all of them by default); the answer is what was cleared."""
        body: Json = {"dry_run": False, "dag_run_id": run_id, "only_failed": only_failed, "reset_dag_runs": True}
        body["include_downstream"] = include_downstream
        if task_ids is not None:
            body["task_ids"] = list(task_ids)
        return list(self.request("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)["task_instances"])

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str, *, map_index: int = -1) -> None:
        """Mark the task instance `success`, `failed` or `skipped`, as the UI's button does."""
        self.request("PATCH", self._path(dag_id, run_id, task_id, map_index), json={"new_state": state})

    def xcom(self, dag_id: str, run_id: str, task_id: str, *, key: str = "return_value", map_index: int = -1) -> Any:
        """The XCom's value, None if there is no such XCom."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        try:
            return self.request("GET", path, params={"map_index": map_index, "deserialize": False})["value"]
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:
                return None
            raise

    def links(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> dict[str, str | None]:
        """The extra links of a task instance."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links"
        return dict(self.request("GET", path, params={"map_index": map_index})["extra_links"])

    def log_text(self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1, map_index: int = -1) -> str:
        """The log of a try, one line per entry: time, level, message, and other fields (logger, error, ...) as JSON."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        content = self.request("GET", path, params={"full_content": True, "map_index": map_index})["content"]
        return "\n".join(_log_line(entry) for entry in content)

    @staticmethod
    def _path(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        return path if map_index < 0 else f"{path}/{map_index}"

    def _poll(self, probe: Callable[[], _T | None], *, timeout_s: float, what: str, seen: Sequence[str] = ()) -> _T:
        deadline = time.monotonic() + timeout_s
        trouble = ""
        while True:
            try:
                found = probe()
            except httpx.TransportError as error:  # the API server is starting, or a test killed it
                trouble = repr(error)
            except httpx.HTTPStatusError as error:
                if not error.response.is_server_error:
                    raise
                trouble = str(error)
            else:
                if found is not None:
                    return found
            if time.monotonic() > deadline:
                message = f"waited {timeout_s:.0f} s for {what}; last seen: {', '.join(seen) or 'nothing'} {trouble}"
                raise StackError(message)
            time.sleep(0.5)


def _log_line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    rest = {key: value for key, value in entry.items() if key not in _LOG_CONTEXT and value is not None}
    parts = [str(entry.get("timestamp") or ""), str(entry.get("level") or ""), str(entry.get("event", ""))]
    return " ".join([*(part for part in parts if part), *([json.dumps(rest)] if rest else [])])

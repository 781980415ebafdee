"""Recorded answers of a Jobs API ("tapes") played by the fake one, as faults around its honest behaviour.

A tape's job has a made-up id and metadata; both are replaced by those of the job that was posted. What a tape says about
submits and versions is left to the honest server, which knows the ids it was given.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from airflow_provider.testing.jobs_api import FakeJobsServer
from airflow_provider.testing.jobs_api_parts import FakeJob, Fault
from tests.support.case_files import CASES

JOB_ROUTE = ".*/api/jobs/[^/]+"
FOR_EVER = 1_000_000


@dataclass(frozen=True)
class Tape:
    """The replies of one case by route."""

    routes: dict[tuple[str, str], list[dict[str, Any]]]

    @classmethod
    def load(cls, case: str, file: str = "tape.json") -> Tape:
        """Read a case's tape."""
        routes = json.loads((CASES / case / file).read_text("utf-8"))["routes"]
        return cls({(route["method"], route["path"]): route["replies"] for route in routes})

    @classmethod
    def of_job(cls, details: dict[str, Any]) -> Tape:
        """A tape that knows only how the job ended."""
        return cls({("GET", JOB_ROUTE): [{"json": details}]})

    @property
    def last_job(self) -> dict[str, Any]:
        """The job as the tape shows it last."""
        last: dict[str, Any] = self.routes["GET", JOB_ROUTE][-1]["json"]
        return last

    def saying(self, message: str) -> Tape:
        """The same end with another message."""
        return Tape.of_job({**self.last_job, "message": message})

    def follow(self, server: FakeJobsServer, job: FakeJob) -> None:
        """From now on answer questions about `job` as the tape does; the last answer stays."""
        name = job.request["submission_id"]
        own = {"submission_id": name, "metadata": job.request["metadata"]}
        for fault in _faults("GET", f".*/api/jobs/{name}", self.routes["GET", JOB_ROUTE], own):
            server.add(fault)

    def arm(self, server: FakeJobsServer, method: str, path: str) -> list[Fault]:
        """Play one route of the tape that is about no particular job."""
        return [server.add(fault) for fault in _faults(method, path, self.routes[method, path], {})]


def _faults(method: str, path: str, replies: list[dict[str, Any]], own: dict[str, Any]) -> list[Fault]:
    found = []
    for number, reply in enumerate(replies, 1):
        times = FOR_EVER if number == len(replies) else reply.get("times", 1)
        if reply.get("drop"):
            found.append(Fault("refuse", method, path, times))
            continue
        is_json = "json" in reply
        body = json.dumps({**reply["json"], **own}) if is_json else reply.get("text", "")
        kind = "application/json" if is_json else "text/html" if body.startswith("<") else "text/plain"
        found.append(
            Fault("answer", method, path, times, status=reply.get("status", 200), body=body, content_type=kind)
        )
    return found

"""A stand-in for Ray's dashboard and for an S3 bucket, in a process of its own: what a triggerer asks, at the pace of a real one.

`python -m benchmarks.stand_in_cluster SETTINGS` (JSON) prints its port and serves until it is ended. It answers as Ray 2.60 does: a
job by its id, after a latency drawn from the recorded ones, now and then never; the log as JSON, and as a websocket that
begins at the start on each connection and sends messages of at most 10 lines. Any other path is an object of the bucket, a driver's
sign of life that was written just now.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import formatdate
from typing import Any

from aiohttp import web

from airflow_provider.core.records import AliveRecord, Phase
from airflow_provider.testing.jobs_api_parts import FakeJob, cut
from benchmarks.latency import drawn, recorded
from benchmarks.log_text import Log

FOREVER_S = 3600.0
FIRST_HANG = 7
"""The first question that is never answered: a run with few jobs meets one too."""


@dataclass
class Settings:
    """How the stand-in behaves."""

    hangs_each: int = 0
    """From the seventh on, each so-manieth question for a job's status is never answered; 0 answers all."""
    seed: int = 1
    log: dict[str, Any] = field(default_factory=dict)
    """Of each job: see `Log`."""
    cuts_at: list[int] = field(default_factory=list)
    """Characters after which a log connection is cut, one for each of the first connections of a job."""
    pauses_of_each: int = 0
    """See `Pauses`."""


@dataclass
class Pauses:
    """The times between two questions for one job's status since `begin`.

    The mean is that of each job's first `num_each` pauses that began after `begin` (0: of all), once they have ended. Pauses that a window
    cuts off would shift it: which ones it cuts depends on their length.
    """

    num_each: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    num: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, name: str, seconds: float | None) -> None:
        """A question for a job, so long after the last one."""
        num_before, self.asked[name] = self.asked[name], self.asked[name] + 1
        if seconds is None:
            return
        self.longest_s = max(self.longest_s, seconds)
        if num_before and (self.num_each == 0 or num_before <= self.num_each):
            self.num, self.total_s = self.num + 1, self.total_s + seconds

    def shown(self, still_open: Sequence[float]) -> dict[str, int]:
        """The figures. One that has not ended yet may be the longest: a job that is asked no more must not look well served."""
        longest_s = max([self.longest_s, *still_open])
        return {
            "num_gaps": self.num,
            "gaps_ms": round(self.total_s * 1000),
            "longest_gap_ms": round(longest_s * 1000),
        }


class StandIn:
    """The server; counts what it is asked."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.random = random.Random(settings.seed)  # noqa: S311 - repeatable
        self.latency = recorded()
        self.counts: Counter[str] = Counter()
        self.ends: dict[str, float] = {}
        """When jobs end, in seconds of the wall clock; a job without an entry goes on."""
        self.asked: set[str] = set()
        self.num_status = 0
        """Questions for a status since the start: `begin` must not put off the next one that hangs."""
        self.tails: Counter[str] = Counter()
        self.polled: dict[str, float] = {}
        """When each job's status was asked last."""
        self.pauses = Pauses(settings.pauses_of_each)
        self.log_bytes = self.num_cuts = 0
        self.log = Log(**settings.log)

    def app(self) -> web.Application:
        """All routes."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/stand-in/ends", self.set_ends)
        app.router.add_post("/stand-in/begin", self.begin)
        app.router.add_get("/stand-in/counts", self.show_counts)
        app.router.add_get("/api/version", self.version)
        app.router.add_get("/api/jobs/{id}", self.job)
        app.router.add_get("/api/jobs/{id}/logs", self.whole_log)
        app.router.add_get("/api/jobs/{id}/logs/tail", self.tail)
        app.router.add_get("/{key:.*}", self.object)
        return app

    async def set_ends(self, request: web.Request) -> web.Response:
        """Say when jobs end."""
        self.ends |= await request.json()
        return web.Response()

    async def begin(self, _: web.Request) -> web.Response:
        """Count anew."""
        self.counts.clear()
        self.pauses = Pauses(self.settings.pauses_of_each)
        return web.Response()

    async def show_counts(self, _: web.Request) -> web.Response:
        """What was asked since `begin`, and of how many jobs ever."""
        now = time.monotonic()
        still_open = [now - at for name, at in self.polled.items() if not self.is_over(name)]
        return web.json_response(dict(self.counts) | self.pauses.shown(still_open) | self.ever())

    def ever(self) -> dict[str, int]:
        """What isn't counted anew: a log that is there from the beginning is fetched before all jobs were polled."""
        return {
            "jobs_asked": len(self.asked),
            "log_bytes_ever": self.log_bytes,
            "tails_ever": self.tails.total(),
            "cuts_ever": self.num_cuts,
        }

    def num_lines(self, name: str) -> int:
        """How many lines a job's log has by now; it stops growing where the job ends."""
        return self.log.num_lines_at(min(time.time(), self.ends.get(name, float("inf"))))

    def sent(self, num_bytes: int) -> None:
        """Count what was sent of a log."""
        self.log_bytes += num_bytes
        self.counts["log_bytes"] += num_bytes

    def hangs(self) -> bool:
        """Whether the question that just came is one that is never answered."""
        each, after = self.settings.hangs_each, self.num_status - FIRST_HANG
        return each > 0 and after >= 0 and after % each == 0

    async def version(self, _: web.Request) -> web.Response:
        """As Ray says it."""
        self.counts["version"] += 1
        answer = {"version": "4", "ray_version": "2.60.0", "ray_commit": "none", "session_name": "session_1"}
        return web.json_response(answer)

    def is_over(self, name: str) -> bool:
        """Whether the job has ended."""
        return time.time() >= self.ends.get(name, float("inf"))

    async def job(self, request: web.Request) -> web.Response:
        """One job's status."""
        name = request.match_info["id"]
        self.counts["status"] += 1
        self.num_status += 1
        now = time.monotonic()
        self.pauses.add(name, now - self.polled[name] if name in self.polled else None)
        self.polled[name] = now
        if self.hangs():
            self.counts["hung"] += 1
            await asyncio.sleep(FOREVER_S)
        await asyncio.sleep(drawn(self.latency, self.random.random()))
        self.asked.add(name)
        job = FakeJob(request={"submission_id": name, "entrypoint": "python train.py"})
        job.status = "SUCCEEDED" if self.is_over(name) else "RUNNING"
        return web.json_response(job.details())

    async def whole_log(self, request: web.Request) -> web.StreamResponse:
        """The file as JSON, all of it."""
        self.counts["whole_log"] += request.method == "GET"
        text = "".join(self.log.messages(self.num_lines(request.match_info["id"])))
        body = json.dumps({"logs": text}).encode()
        answer = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        for start in range(0, len(body), 65536):
            part = body[start : start + 65536]
            await answer.write(part)
            self.sent(len(part))
        return answer

    async def tail(self, request: web.Request) -> web.WebSocketResponse:
        """The log as it grows, from its start."""
        name = request.match_info["id"]
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        self.counts["tail"] += 1
        number, self.tails[name] = self.tails[name], self.tails[name] + 1
        cuts = self.settings.cuts_at
        cut_at = cuts[number] if number < len(cuts) else None
        sent_lines = sent_chars = 0
        while request.transport is not None and not request.transport.is_closing():
            was_over, there = self.is_over(name), self.num_lines(name)
            for message in self.log.messages(there, begin=sent_lines):
                if cut_at is not None and sent_chars >= cut_at:
                    self.num_cuts += 1
                    cut(request)
                    return socket
                await socket.send_str(message)
                sent_chars += len(message)
                self.sent(len(message))
            sent_lines = there
            if was_over:
                await socket.close()
                break
            await asyncio.sleep(1.0)  # Ray looks at the file once a second, and reads nothing from the socket
        return socket

    async def object(self, request: web.Request) -> web.Response:
        """An object of the bucket: a sign of life, whatever the key."""
        self.counts["bucket"] += 1
        now = datetime.now(timezone.utc)
        if not request.path.endswith("/alive.json"):
            body = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
            return web.Response(status=404, text=body, content_type="application/xml")
        record = AliveRecord(run_uid="u1", phase=Phase.TRAINING, phase_since=now, written_at=now)
        headers = {"ETag": '"1"', "Last-Modified": formatdate(now.timestamp(), usegmt=True)}
        return web.Response(body=record.body(), headers=headers, content_type="application/json")


async def serve(settings: Settings) -> None:
    """Serve for ever, on a free port of loopback that is printed."""
    runner = web.AppRunner(StandIn(settings).app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Settings(**json.loads(sys.argv[1]))))

"""All services of a test, demo or benchmark, started side by side and wired to one another."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tests.stack.airflow_services import AirflowServices
from tests.stack.gate import Gate
from tests.stack.postgres import PostgresServer
from tests.stack.process import Service, StackError
from tests.stack.ray_cluster import RayCluster
from tests.stack.s3 import S3Server

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

ALL_PARTS: Final = ("s3", "ray", "airflow")
_S = TypeVar("_S", bound=Service)
log = logging.getLogger(__name__)


class Stack:
    """S3, Ray and Airflow (with its Postgres) on loopback, each of them real; leave one out by `parts`.

    The cluster reaches S3 through its own environment. Airflow has the connections `ray_default` and `aws_default`. Two stacks can
    run at once. Everything ends with this Python process, also if that one is killed.
    """

    def __init__(
        self,
        state_dir: Path | None = None,
        *,
        parts: Collection[str] = ALL_PARTS,
        dags: Sequence[Path] = (),
        ray_num_cpus: int = 4,
        ray_env: Mapping[str, str] | None = None,
        airflow_env: Mapping[str, str] | None = None,
        is_gated: bool = False,
    ) -> None:
        """Choose ports and keys; nothing is started yet.

        Logs and data go to `state_dir`; without one, to a temporary directory, which is removed at the end unless an error left the
        `with` block. With `is_gated`, jobs and Airflow reach S3 and the dashboard through gates, which see and hold requests.
        """
        if unknown := set(parts) - set(ALL_PARTS):
            message = f"unknown parts {sorted(unknown)}; there are {', '.join(ALL_PARTS)}"
            raise StackError(message)
        self._own_state_dir = state_dir is None
        self.state_dir = Path(tempfile.mkdtemp(prefix="rt-stack-")) if state_dir is None else state_dir.resolve()
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.boot_times_s: dict[str, float] = {}
        self._stopping = threading.Event()
        self._s3 = S3Server(self.state_dir) if "s3" in parts else None
        self.gates: dict[str, Gate] = {}
        if is_gated and self._s3 is not None:
            self.gates["s3"] = Gate(self._s3.port)
            self._s3.shown_url = self.gates["s3"].url
        s3_env = {} if self._s3 is None else self._s3.env()
        self._ray = (
            RayCluster(self.state_dir, num_cpus=ray_num_cpus, env={**s3_env, **(ray_env or {})})
            if "ray" in parts
            else None
        )
        if is_gated and self._ray is not None:
            self.gates["ray"] = Gate(self._ray.dashboard_port)
            self._ray.shown_address = self.gates["ray"].url
        self._postgres = PostgresServer(self.state_dir) if "airflow" in parts else None
        self._airflow = (
            None
            if self._postgres is None
            else AirflowServices(
                self.state_dir,
                database_url=self._postgres.url(),
                dags=dags,
                connections=self.airflow_connections(),
                env=airflow_env,
            )
        )

    @property
    def s3(self) -> S3Server:
        """The S3 server."""
        return _asked_for(self._s3, "s3")

    @property
    def ray(self) -> RayCluster:
        """The Ray cluster."""
        return _asked_for(self._ray, "ray")

    @property
    def postgres(self) -> PostgresServer:
        """Airflow's database."""
        return _asked_for(self._postgres, "airflow")

    @property
    def airflow(self) -> AirflowServices:
        """Airflow."""
        return _asked_for(self._airflow, "airflow")

    def airflow_connections(self) -> dict[str, str]:
        """The connections to this stack's own services, by id."""
        found: dict[str, RayCluster | S3Server | None] = {"ray_default": self._ray, "aws_default": self._s3}
        return {name: service.airflow_connection() for name, service in found.items() if service is not None}

    def services(self) -> Iterator[Service]:
        """Those asked for, in the order in which they can be stopped."""
        every: tuple[Service | None, ...] = (self._airflow, self._ray, self._s3, self._postgres)
        yield from (service for service in every if service is not None)

    def start(self) -> None:
        """Start all side by side; if one fails, or on Ctrl-C, stop all and raise."""
        for gate in self.gates.values():
            gate.__enter__()
        chains: list[list[Service | None]] = [[self._s3], [self._ray], [self._postgres, self._airflow]]
        with ThreadPoolExecutor(len(chains)) as pool:
            futures = [pool.submit(self._start_chain, [one for one in chain if one is not None]) for chain in chains]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException as error:
                self.stop()  # ends the others' waiting too
                wait(futures)
                self._end(error)  # what they had started meanwhile
                raise

    def stop(self) -> None:
        """Stop all. Nothing that they started is left on return."""
        self._stopping.set()
        # The database last: Airflow's processes end politely only while it answers.
        for last in (False, True):
            services = [one for one in self.services() if (one is self._postgres) == last]
            if services:
                with ThreadPoolExecutor(len(services)) as pool:
                    list(pool.map(lambda service: service.stop(), services))
        for gate in self.gates.values():
            gate.__exit__(None, None, None)
        self.gates.clear()

    def remove_state(self) -> None:
        """Remove logs and data, if the directory is ours."""
        if self._own_state_dir:
            shutil.rmtree(self.state_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; after an error, the logs stay and their place is logged."""
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self.stop()
        if error is None or isinstance(error, KeyboardInterrupt):
            self.remove_state()
        else:
            log.error("logs of the services: %s", self.state_dir)

    def _start_chain(self, services: Sequence[Service]) -> None:
        for service in services:
            if self._stopping.is_set():
                return
            begun = time.monotonic()
            service.start()
            self.boot_times_s[service.name] = round(time.monotonic() - begun, 1)


def _asked_for(service: _S | None, part: str) -> _S:
    if service is None:
        message = f"this stack was made without {part}"
        raise StackError(message)
    return service

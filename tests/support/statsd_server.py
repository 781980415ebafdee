"""A StatsD server on a real UDP socket, and the client that Airflow's optional dependency `statsd` has.

Airflow imports the class `StatsClient` of a module of that name, which nothing else here needs. Lines are StatsD's own:
`name:value|type`.
"""

from __future__ import annotations

import contextlib
import socket
from types import ModuleType

from typing_extensions import Self

from tests.stack.process import LOOPBACK


class StatsdServer:
    """Receives what is sent to its port."""

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((LOOPBACK, 0))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def received(self) -> dict[str, str]:
        """The lines that have come since the last call, the last one of each name.

        A datagram on loopback is there as soon as it is sent.
        """
        found: dict[str, str] = {}
        with contextlib.suppress(BlockingIOError):
            while True:
                name, _, value = self._socket.recv(1_024).decode().partition(":")
                found[name] = value
        return found


class StatsClient:
    """The calls that Airflow makes. Its timers say nothing here."""

    def __init__(self, host: str, port: int, prefix: str, is_ipv6: bool) -> None:
        assert not is_ipv6
        self._address, self._prefix = (host, port), prefix

    def incr(self, stat: str, count: int = 1, rate: float = 1) -> None:
        self._send(stat, f"{count}|c")

    def gauge(self, stat: str, value: float, rate: float = 1, delta: bool = False) -> None:
        self._send(stat, f"{value}|g")

    def timing(self, stat: str, value: float) -> None:
        self._send(stat, f"{value}|ms")

    def timer(self, stat: str) -> StatsClient:
        return self

    def start(self) -> None:
        """Of a timer."""

    def stop(self) -> None:
        """Of a timer."""

    def _send(self, stat: str, value: str) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(f"{self._prefix}.{stat}:{value}".encode(), self._address)


def client_module() -> ModuleType:
    """A module `statsd` with that client."""
    module = ModuleType("statsd")
    module.StatsClient = StatsClient  # type: ignore[attr-defined]
    return module

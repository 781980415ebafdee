"""The page's app as an address only: plugins are loaded in every process of Airflow, and only the API server needs a web framework."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

URL_PREFIX = "/ray-train"
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class LazyApp:
    """An ASGI app that is made at its first request."""

    def __init__(self) -> None:
        """Make nothing yet."""
        self._app: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request over."""
        if self._app is None:
            with self._lock:
                if self._app is None:
                    from airflow_provider.plugin.app import create_app

                    self._app = create_app()
        await self._app(scope, receive, send)

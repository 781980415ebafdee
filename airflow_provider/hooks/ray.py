"""The `ray` connection: where the dashboard is, how we identify ourselves, how we check its identity."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider.core.errors import InvalidConfig, RayTrainError
from airflow_provider.core.json_input import UnreadableJson, read_json

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider.client.address import ClusterAddress
    from airflow_provider.client.credentials import ClusterCredentials
    from airflow_provider.client.jobs_client import AsyncJobsClient, SyncJobsClient

ALLOWED_EXTRAS = frozenset({"verify", "ca_file", "header_name", "headers"})
"""Connection extras we read. Others are refused: connection editors must not reach into our client."""
_OF_OTHER_TYPES = frozenset(
    {
        "timeout",
        "proxies",
        "cert",
        "stream",
        "allow_redirects",
        "max_redirects",
        "trust_env",
        "check_response",
        "auth_type",
    }
)
"""Extras of Airflow's HTTP connections: a key that a message may repeat. Any other may be a token in the wrong field."""


class RayHook(BaseHook):
    """Clients for the Jobs API behind an Airflow connection of type `ray`.

    The host may carry scheme, port and a path prefix (`https://gw.example/ray/team-a`); the password is Ray's token.
    TLS verification is on unless the extra `verify` is false in so many words; `ca_file` names a private authority.
    `RAY_ADDRESS` and the like in the environment never redirect it.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "ray_default"
    conn_type = "ray"
    hook_name = "Ray"

    def __init__(self, conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.conn_id = conn_id

    def target(self) -> tuple[ClusterAddress, ClusterCredentials]:
        """Address and credentials, from the connection as it is now. Raises InvalidConfig."""
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException:
            raise missing_connection(self.conn_id, "ray") from None
        _checked_extra(connection)
        return read_connection(connection, extra=connection.extra_dejson)

    async def atarget(self) -> tuple[ClusterAddress, ClusterCredentials]:
        """Address and credentials without blocking the event loop. Raises InvalidConfig."""
        try:
            connection = await self.aget_connection(self.conn_id)
        except AirflowNotFoundException:
            raise missing_connection(self.conn_id, "ray") from None
        _checked_extra(connection)
        # Reading extras masks their secrets, which the plain property does by a call that blocks the loop.
        return read_connection(connection, extra=await connection.aextra_dejson())

    def client(self) -> SyncJobsClient:
        """A client with its own connection pool; close it after use."""
        from airflow_provider.client.jobs_client import SyncJobsClient

        address, credentials = self.target()
        return SyncJobsClient(address, credentials=credentials)

    async def aclient(self) -> AsyncJobsClient:
        """An async client on the event loop's pool for this dashboard; close it after use."""
        from airflow_provider.client.jobs_client import AsyncJobsClient

        # A tenth of a second or more, in which no other trigger of the process would run. Each waits for it in a thread, also where another one
        # has begun it: the module is known from then on, and importing it here would wait in the event loop.
        await asyncio.to_thread(import_module, "airflow_provider.client.pool")
        address, credentials = await self.atarget()
        return AsyncJobsClient(address, credentials=credentials)

    def test_connection(self) -> tuple[bool, str]:
        """Ask the dashboard for its version. The message goes to the browser and never holds the token."""
        try:
            address, credentials = self.target()
            with self.client() as client:
                version = client.version()
        except RayTrainError as error:
            return False, str(error)
        said = credentials.redact(f"Ray {version.ray_version} answers at {address} (session {version.session_name})")
        return True, said


def missing_connection(conn_id: str, conn_type: str) -> InvalidConfig:
    """The error for a connection id that Airflow does not know."""
    return InvalidConfig(
        f"Airflow has no connection {conn_id!r}",
        known="Airflow says the same of one that its secrets backend could not read: see its warnings in the log",
        change=f"create it with type {conn_type} (Admin, Connections), or name another one",
    )


def read_connection(connection: Connection, *, extra: object) -> tuple[ClusterAddress, ClusterCredentials]:
    """An Airflow connection as address and credentials. Raises InvalidConfig naming the field to change.

    `extra` is what Airflow read from the connection's extra; it reads broken JSON as an empty one.
    """
    from airflow_provider.client.address import ClusterAddress
    from airflow_provider.client.credentials import ClusterCredentials

    _checked_extra(connection)
    extras = _known_extras(connection, extra)
    address = ClusterAddress.parse(connection.host, schema=connection.schema, port=connection.port)
    credentials = ClusterCredentials(
        token=connection.password or None,
        header_name=_text(extras, "header_name") or "Authorization",
        extra_headers=dict(_headers(extras)),
        verify=_verify(extras),
    )
    return address, credentials


def _checked_extra(connection: Connection) -> None:
    """Before Airflow reads it: Airflow takes broken JSON for none, and nesting ends it with a RecursionError."""
    try:
        extra = read_json(connection.extra or "{}")
    except UnreadableJson as error:
        raise _no_object(connection, str(error)) from None
    if not isinstance(extra, dict):
        raise _no_object(connection, f"a JSON {type(extra).__name__}")


def _known_extras(connection: Connection, extra: object) -> dict[str, Any]:
    if not isinstance(extra, dict):
        raise _no_object(connection, f"a {type(extra).__name__}")
    unknown = set(map(str, extra)) - ALLOWED_EXTRAS
    if unknown:
        shown = sorted(name for name in unknown if name in _OF_OTHER_TYPES or _is_typo(name))
        hidden = [f"{len(unknown) - len(shown)} whose names are not repeated here"] if len(shown) < len(unknown) else []
        raise InvalidConfig(
            f"Connection {connection.conn_id} has unknown extras: {', '.join(shown + hidden)}",
            change=f"known ones are {', '.join(sorted(ALLOWED_EXTRAS))}",
        )
    return extra


def _is_typo(name: str) -> bool:
    return bool(get_close_matches(name[:40], ALLOWED_EXTRAS, n=1, cutoff=0.8))


def _no_object(connection: Connection, seen: str) -> InvalidConfig:
    what = f"The extra of connection {connection.conn_id} is not a JSON object"
    return InvalidConfig(what, known=f"it holds {seen}", change="correct it")


def _text(extras: dict[str, Any], name: str) -> str:
    value = extras.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidConfig(f"The connection's {name} is not a text", change="correct it, or leave it empty")
    return value or ""


def _headers(extras: dict[str, Any]) -> dict[str, str]:
    headers = extras.get("headers") or {}
    if isinstance(headers, str):
        try:
            headers = read_json(headers)
        except UnreadableJson:
            raise InvalidConfig("The connection's headers are not JSON", change='write {"name": "value"}') from None
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise InvalidConfig("The connection's headers are not a mapping of texts", change='write {"name": "value"}')
    return headers


def _verify(extra: dict[str, Any]) -> bool | str:
    verify = extra.get("verify", True)
    if isinstance(verify, str):
        words = {"true": True, "false": False, "": True}
        if verify.strip().lower() not in words:
            raise InvalidConfig(
                "verify is neither true nor false", change="set it to true or false; a CA file goes to ca_file"
            )
        verify = words[verify.strip().lower()]
    if verify is None:
        verify = True
    if not isinstance(verify, bool):
        raise InvalidConfig("verify is neither true nor false", change="set it to true or false")
    ca_file = _text(extra, "ca_file")
    if not ca_file:
        return verify
    if not verify:
        raise InvalidConfig("verify is false and ca_file is given", change="drop one of the two")
    return ca_file

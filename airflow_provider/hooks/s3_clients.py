"""The S3 clients of this process: stores behind the same AWS connection share one.

A client costs about 12 MB and 0.2 s of a core: a triggerer that watches 1,000 experiments has one, not 1,000.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from airflow_provider.hooks.ray import missing_connection

_SHARED: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
"""Clients that some store still uses, by the connection as it was read. No lock: it could be held by a thread that a signal
has stopped; two that come at once make two clients."""


CALLER = "RayTrain"
"""Who asks, in the user agent of our requests."""


class Patience(NamedTuple):
    """How long a client waits: seconds for each read, and how often it sends a request."""

    timeout_s: float
    max_attempts: int


PATIENT = Patience(20.0, 3)
"""For trainings: a slow answer is better than none."""
HASTY = Patience(5.0, 2)
"""For a page that somebody waits for."""


class SharedS3Client:
    """A store's way to its client: that of the connection as it is now.

    A store calls it again when its client's credentials were refused, and then gets another one.
    """

    def __init__(self, aws_conn_id: str | None, *, patience: Patience = PATIENT, team_name: str | None = None) -> None:
        """Read nothing yet."""
        self._aws_conn_id, self._patience, self._team_name = aws_conn_id, patience, team_name
        self._last: Any = None

    def __call__(self) -> Any:
        """The boto3 client. Raises InvalidConfig for a connection that Airflow does not know."""
        # A hook caches its client and credentials, so each client comes from a new hook.
        hook = s3_hook(self._aws_conn_id, patience=self._patience, team_name=self._team_name)
        key = (self._aws_conn_id, self._team_name, self._patience, _as_read(hook, self._aws_conn_id))
        shared = _SHARED.get(key)
        if shared is None or shared is self._last:
            shared = _SHARED[key] = hook.get_conn()
        self._last = shared
        return shared


def s3_hook(aws_conn_id: str | None, *, patience: Patience = PATIENT, team_name: str | None = None) -> Any:
    """Airflow's S3 hook. A missing `aws_default` means boto3's own chain, as everywhere in Airflow; any other is an error.

    `team_name` is for Airflow's servers: they see connections that belong to that team too, as a task of its DAGs does. A task
    names none, since Airflow knows whose it is.
    """
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    from airflow_provider.storage.s3 import s3_client_config

    hook: Any = S3Hook(aws_conn_id=aws_conn_id, config=s3_client_config(**patience._asdict()))
    # The hook would look for it in the source of every frame of the stack: 0.07 s, twice in each try.
    hook._get_caller = lambda *_, **__: CALLER  # noqa: SLF001 - no public way; where it has another name, the hook looks for it
    if team_name is not None:
        hook.get_connection = partial(_connection_of_team, team_name=team_name)  # the SDK's lookup can't name a team
    if aws_conn_id not in (None, "aws_default") and _connection(hook, aws_conn_id) is None:
        raise missing_connection(str(aws_conn_id), "aws")
    return hook


def _connection_of_team(conn_id: str, *, team_name: str) -> Any:
    """As the API server looks it up for a task of the team."""
    from airflow.models.connection import Connection

    return Connection.get_connection_from_secrets(conn_id, team_name=team_name)


def _as_read(hook: Any, aws_conn_id: str | None) -> Hashable:
    """What makes a connection another one: a rotated key, another endpoint. In memory only."""
    found = _connection(hook, aws_conn_id)
    return None if found is None else (found.login, found.password, found.host, found.port, found.extra)


def _connection(hook: Any, aws_conn_id: str | None) -> Any:
    from airflow.sdk.exceptions import AirflowNotFoundException

    if aws_conn_id is None:
        return None
    try:
        return hook.get_connection(aws_conn_id)
    except AirflowNotFoundException:
        return None

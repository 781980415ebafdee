"""Doctor's look at the cluster: connection, authentication, Ray's release; with a small job also from inside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider.cli.airflow_side import check_connection
from airflow_provider.cli.doctor_job import CheckRequest, check_by_job
from airflow_provider.cli.findings import Finding, checked, of_error, ok, skipped, warning
from airflow_provider.cli.wording import release
from airflow_provider.core.errors import InvalidConfig, RayTrainError
from airflow_provider.core.json_input import UnreadableJson, read_json
from airflow_provider.core.spec import StorageConfig
from airflow_provider.hooks.experiment import cluster_storage
from airflow_provider.hooks.job_package import runtime_files
from airflow_provider.hooks.ray import RayHook

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider.client.address import ClusterAddress
    from airflow_provider.client.credentials import ClusterCredentials
    from airflow_provider.client.jobs_client import SyncJobsClient

OLDEST_RAY, NEWEST_TESTED_RAY = (2, 51), (2, 60)
_UNKNOWN_JOB = "ray-train-doctor-asks-for-no-job"
_RESERVED = ("working_dir", "py_modules")


def check_cluster(args: Namespace, *, conn_id: str, aws_conn_id: str | None) -> Iterator[Finding]:
    """What can be said without a job, then the job if it is wanted."""
    env: dict[str, Any] | None = None
    try:
        env = runtime_env_of(args.runtime_env)
        yield _runtime_env(env, is_sent=args.submit_check)
    except RayTrainError as error:
        yield of_error("runtime-env", error)
    try:
        check_connection(conn_id, conn_type=RayHook.conn_type)
        hook = RayHook(conn_id)
        address, credentials = hook.target()
        client = hook.client()
    except RayTrainError as error:
        yield of_error("ray-connection", error)
        return
    with client:
        yield ok("ray-connection", f"connection {conn_id}: {address}")
        yield _transport(address, credentials)
        answer = checked("dashboard", lambda: _dashboard(client))
        yield answer
        if answer.health.value != "ok":
            return
        yield checked("ray-version", lambda: _ray_version(client))
        yield checked("jobs-api", lambda: _jobs_api(client))
        if not args.submit_check or env is None:
            yield _not_submitted(client)
            return
        yield from _by_job(args, client, env=env, aws_conn_id=aws_conn_id)


def runtime_env_of(text: str | None) -> dict[str, Any]:
    """The runtime environment of the command line. Raises InvalidConfig."""
    if text is None:
        return {}
    try:
        found = read_json(text)
    except UnreadableJson as error:
        raise InvalidConfig("--runtime-env is no JSON", known=str(error), change='write {"pip": ["..."]}') from None
    if not isinstance(found, dict):
        raise InvalidConfig("--runtime-env is no JSON object", change='write {"pip": ["..."]}')
    clash = [name for name in _RESERVED if name in found]
    if clash:
        raise InvalidConfig(f"--runtime-env sets {', '.join(clash)}", change="use the operator's working_dir")
    if not isinstance(found.get("env_vars") or {}, dict):
        raise InvalidConfig("--runtime-env has env_vars that are no JSON object", change='write {"NAME": "value"}')
    return found


def _runtime_env(env: dict[str, Any], *, is_sent: bool) -> Finding:
    size = sum(len(body) for body in runtime_files().values())
    what = f"the runtime that travels with a job: {len(runtime_files())} files, {size // 1000} kB"
    if env and not is_sent:
        change = "add --submit-check: only the cluster can build it"
        return warning("runtime-env", f"{what}; {', '.join(env)} not tried", change=change)
    return ok("runtime-env", what)


def _transport(address: ClusterAddress, credentials: ClusterCredentials) -> Finding:
    """How the token travels."""
    if credentials.token is None and not credentials.extra_headers:
        return warning(
            "authentication",
            "no token is sent",
            known="whoever reaches Ray's Jobs API may run code on the cluster",
            change="run Ray with RAY_AUTH_MODE=token and put the token into the connection's password, or fence the network",
        )
    if not address.is_secure and address.is_loopback:
        return ok("authentication", f"a token in header {credentials.shown_header}, over http on this machine only")
    if not address.is_secure:
        return warning(
            "authentication",
            f"the token travels in clear over http to {address.host}",
            change="put TLS before the dashboard, or keep the way to it private",
        )
    if credentials.verify is False:
        change = "set verify to true; a private authority goes to ca_file"
        return warning("authentication", "the dashboard's certificate isn't checked (verify is false)", change=change)
    return ok("authentication", f"a token in header {credentials.shown_header}, over https")


def _dashboard(client: SyncJobsClient) -> Finding:
    version = client.version()
    return ok("dashboard", f"it answers and takes our identity (session {version.session_name})")


def _ray_version(client: SyncJobsClient) -> Finding:
    said = client.version().ray_version
    found = release(said)
    if len(found) < 2:
        return warning("ray-version", f"Ray calls itself {said}", change="use a release from 2.51 on")
    if found[:2] < OLDEST_RAY:
        return warning(
            "ray-version",
            f"Ray {said} on the cluster is older than 2.51",
            known="Train V2 needs 2.51 or newer",
            change="upgrade the cluster, or use train_version='v1', with fewer guarantees (docs: Train V1)",
        )
    if found[:2] > NEWEST_TESTED_RAY:
        return warning(
            "ray-version",
            f"Ray {said} on the cluster is newer than the newest tested one, 2.60",
            known="a release may move the internals that fencing hangs on; each job checks them at its start",
            change="run --submit-check, and read `fenced` in a training's result",
        )
    return ok("ray-version", f"Ray {said} on the cluster (supported from 2.51, tested up to 2.60)")


def _jobs_api(client: SyncJobsClient) -> Finding:
    client.get_job(_UNKNOWN_JOB)
    return ok("jobs-api", "the Jobs API answers a question for a job")


def _not_submitted(client: SyncJobsClient) -> Finding:
    def look() -> Finding:
        said = client.version().ray_version
        what = f"Ray's seams and the bucket as the cluster sees it were not checked (the cluster says Ray {said})"
        return skipped("cluster-inside", what, change="run it with --submit-check, which sends a small job")

    return checked("cluster-inside", look)


def _by_job(
    args: Namespace, client: SyncJobsClient, *, env: dict[str, Any], aws_conn_id: str | None
) -> Iterator[Finding]:
    try:
        storage = StorageConfig.rendered({"endpoint_url": args.endpoint_url}, parameter="--endpoint-url")
        if args.storage_path is not None:
            storage = cluster_storage(storage, uri=args.storage_path, aws_conn_id=aws_conn_id)
        request = CheckRequest(
            storage_path=args.storage_path,
            storage=storage,
            is_read_only=args.read_only,
            runtime_env=json.loads(json.dumps(env)),
            python=args.python,
            timeout_s=args.timeout,
        )
        yield from check_by_job(client, request)
    except RayTrainError as error:
        yield of_error("check-job", error, change="see the job on Ray's dashboard")

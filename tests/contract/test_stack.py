"""The services that all other tests stand on: that they are the real thing, and that nothing of them is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from botocore.exceptions import ClientError

from tests.stack import HeldProcess, PostgresServer, RayCluster, S3Server, Stack, StackError, wait_until
from tests.stack.process import clean_env

REPOSITORY = Path(__file__).resolve().parents[2]

TRIVIAL_DAG = """
from airflow.sdk import DAG, task

with DAG("trivial", schedule=None):

    @task
    def answer():
        print("hello from the task")
        return {"answer": 42}

    answer()
"""

# A parent that starts a daemon in a session of its own and ends: nothing but the subreaper can find that daemon.
DAEMONISE = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(float(sys.argv[1]))
"""


def open_ports(processes: list[psutil.Process]) -> set[str]:
    """The addresses these processes listen on."""
    found = set()
    for process in processes:
        try:
            connections = process.net_connections()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        found |= {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
    return found


def assert_gone(processes: list[psutil.Process]) -> None:
    """None of these lives: a zombie of another parent counts as gone."""
    assert processes, "the test must have seen some"
    left = [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert left == []


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    with RayCluster(tmp_path_factory.mktemp("ray"), num_cpus=2, env={"MADE_UP": "value"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    dags = tmp_path_factory.mktemp("dags")
    (dags / "trivial.py").write_text(TRIVIAL_DAG)
    with Stack(parts=("airflow",), dags=[dags]) as stack:
        yield stack.airflow


class TestHeldProcess:
    """The guarantee below all others: a service's whole tree can be seen and ended."""

    def hold(self, tmp_path: Path, lives_s: float) -> HeldProcess:
        argv = [sys.executable, "-c", DAEMONISE, str(lives_s)]
        return HeldProcess(argv, log=tmp_path / "log", env=clean_env(tmp_path / "home"), cwd=tmp_path)

    def test_stop_ends_a_daemon_whose_parent_is_gone(self, tmp_path):
        held = self.hold(tmp_path, 0.3)
        wait_until(lambda: not held.is_alive(), timeout_s=10, what="the parent's end")
        orphans = held.tree()
        assert len(orphans) == 1
        held.stop()
        assert_gone(orphans)

    def test_kill_main_leaves_the_rest_running_until_stop(self, tmp_path):
        held = self.hold(tmp_path, 600)
        wait_until(lambda: len(held.tree()) == 2, timeout_s=10, what="the daemon")
        both = held.tree()
        held.kill_main()
        assert not held.is_alive()
        assert len(held.tree()) == 1
        held.kill()
        assert_gone(both)

    def test_a_killed_owner_takes_its_services_along(self, tmp_path):
        script = (
            "import sys, time; from pathlib import Path; from tests.stack.process import HeldProcess, clean_env;"
            "home = Path(sys.argv[1]); held = HeldProcess([sys.executable, '-c', 'import time; time.sleep(600)'],"
            "log=home / 'log', env=clean_env(home), cwd=home); print(held.pid, flush=True); time.sleep(600)"
        )
        command = [sys.executable, "-c", script, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as owner:
            service = psutil.Process(int(owner.stdout.readline()))
            owner.send_signal(signal.SIGKILL)
        wait_until(lambda: not service.is_running(), timeout_s=20, what="the service's end")

    def test_a_command_that_is_not_there_is_said(self, tmp_path):
        with pytest.raises(StackError, match="could not start /no/such/program"):
            HeldProcess(["/no/such/program"], log=tmp_path / "log", env=clean_env(tmp_path), cwd=tmp_path)

    def test_a_service_that_ends_at_start_is_reported_with_its_log(self, tmp_path):
        argv = [sys.executable, "-c", "raise SystemExit('out of coffee')"]
        held = HeldProcess(argv, log=tmp_path / "log", env=clean_env(tmp_path), cwd=tmp_path)
        with pytest.raises(StackError, match="out of coffee"):
            wait_until(lambda: False, timeout_s=20, what="a service", process=held)
        held.stop()

    def test_services_do_not_see_the_developers_cloud_or_cluster(self, tmp_path, monkeypatch):
        for name in ("AWS_PROFILE", "RAY_ADDRESS", "AIRFLOW__CORE__EXECUTOR", "https_proxy", "PYTHONPATH"):
            monkeypatch.setenv(name, "elsewhere")
        assert "elsewhere" not in clean_env(tmp_path).values()


@pytest.mark.s3
class TestS3:
    def test_listens_on_loopback_only(self, s3):
        assert open_ports(s3.processes()) == {"127.0.0.1"}

    def test_of_many_writers_who_create_if_absent_one_wins(self, s3):
        """Our claims stand on this; moto's server lets two win."""
        start = threading.Barrier(8)

        def create(writer: int) -> int:
            client = s3.client(timeout_s=30)
            start.wait()
            try:
                client.put_object(Bucket="models", Key="claim", Body=str(writer).encode(), IfNoneMatch="*")
            except ClientError as error:
                return error.response["ResponseMetadata"]["HTTPStatusCode"]
            return 200

        with ThreadPoolExecutor(8) as pool:
            statuses = sorted(pool.map(create, range(8)))
        assert statuses == [200, *[412] * 7]

    def test_a_bucket_that_is_not_there_is_an_error(self, s3):
        """AWS doesn't create a bucket at the first write; SeaweedFS would, unless told."""
        with pytest.raises(ClientError, match="NoSuchBucket"):
            s3.client().put_object(Bucket="mistyped", Key="a", Body=b"")

    def test_wrong_keys_are_refused(self, s3, monkeypatch):
        monkeypatch.setattr(s3, "secret_key", "wrong")
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            s3.client().list_buckets()

    def test_data_and_address_survive_a_kill(self, s3):
        s3.client().put_object(Bucket="models", Key="kept", Body=b"data")
        killed = s3.processes()
        s3.kill()
        assert_gone(killed)
        s3.start()
        assert s3.client().get_object(Bucket="models", Key="kept")["Body"].read() == b"data"

    def test_nothing_is_left_after_stop(self, tmp_path):
        with S3Server(tmp_path, buckets=["other"]) as server:
            processes = server.processes()
        assert_gone(processes)


class TestPostgres:
    def test_keeps_its_data_over_a_kill_and_leaves_nothing_after_stop(self, tmp_path):
        import psycopg2

        with PostgresServer(tmp_path) as server:
            dsn = server.url("postgresql")
            connection = psycopg2.connect(dsn)
            with connection, connection.cursor() as cursor:
                cursor.execute("create table kept (id int)")
            connection.close()
            server.kill()
            server.start()
            connection = psycopg2.connect(dsn)
            with connection, connection.cursor() as cursor:
                cursor.execute("select count(*) from kept")
                assert cursor.fetchone() == (0,)
            connection.close()
            processes, root = server.processes(), server.root
            assert open_ports(processes) == set()
        assert_gone(processes)
        assert not root.exists()


@pytest.mark.ray
@pytest.mark.timeout(180)
class TestRay:
    def run_job(self, ray: RayCluster, entrypoint: str) -> tuple[str, str]:
        headers = {"Authorization": f"Bearer {ray.token}"}
        with httpx.Client(base_url=ray.address, headers=headers, trust_env=False, timeout=30) as http:
            job = http.post("/api/jobs/", json={"entrypoint": entrypoint}).raise_for_status().json()["submission_id"]

            def ended() -> bool:
                return http.get(f"/api/jobs/{job}").json()["status"] in {"SUCCEEDED", "FAILED", "STOPPED"}

            wait_until(ended, timeout_s=60, what="the job's end")
            return http.get(f"/api/jobs/{job}").json()["status"], http.get(f"/api/jobs/{job}/logs").json()["logs"]

    def test_answers_with_the_token_only(self, ray):
        assert json.loads(ray.get("/api/version"))["ray_version"]
        with pytest.raises(urllib.error.HTTPError) as refused:
            ray.get("/api/version", token="wrong")
        assert refused.value.code == 403
        refused.value.close()
        assert httpx.get(f"{ray.address}/api/version", trust_env=False).status_code == 401

    def test_listens_on_loopback_only(self, ray):
        assert open_ports(ray.processes()) <= {"127.0.0.1", "::ffff:127.0.0.1"}

    def test_a_job_runs_in_this_interpreter_with_the_clusters_environment(self, ray):
        status, log = self.run_job(ray, "python -c 'import os, sys; print(os.environ[\"MADE_UP\"], sys.prefix)'")
        assert (status, log.split()[-2:]) == ("SUCCEEDED", ["value", sys.prefix])

    def test_a_replaced_cluster_has_the_old_address_and_no_memory(self, ray):
        self.run_job(ray, "true")
        before, killed = ray.session_name(), ray.processes()
        ray.kill_head()
        assert_gone(killed)
        ray.start()
        assert ray.session_name() != before
        assert json.loads(ray.get("/api/jobs/")) == []

    @pytest.mark.slow
    def test_a_second_cluster_runs_beside_it_and_leaves_nothing(self, ray, tmp_path):
        with RayCluster(tmp_path, num_cpus=1) as second:
            assert second.session_name() != ray.session_name()
            processes, temp_dir = second.processes(), second.temp_dir
        assert_gone(processes)
        assert not temp_dir.exists()
        assert ray.session_name(), "stopping one must not stop the other"


@pytest.mark.slow  # every test of the operator stands on this Airflow
@pytest.mark.e2e
@pytest.mark.timeout(300)
class TestAirflow:
    def test_a_dag_runs_to_success(self, airflow):
        with airflow.client() as client:
            run_id = client.run_dag("trivial")
            assert client.wait_for_dag_run("trivial", run_id) == "success"
            assert client.xcom("trivial", run_id, "answer") == {"answer": 42}
            assert "hello from the task" in client.log_text("trivial", run_id, "answer")
            client.clear("trivial", run_id)
            client.wait_for_task("trivial", run_id, "answer", try_number=2)
            assert len(client.tries("trivial", run_id, "answer")) == 2

    def test_listens_on_loopback_only(self, airflow):
        assert open_ports(airflow.processes()) == {"127.0.0.1"}

    def test_a_component_can_be_killed_and_started_alone(self, airflow):
        others = {name: one.process.pid for name, one in airflow.components.items() if name != "triggerer"}
        killed = airflow.triggerer.processes()
        airflow.triggerer.kill()
        assert_gone(killed)
        assert not airflow.is_alive()
        airflow.triggerer.start()
        airflow.wait_until_healthy()
        assert others == {name: one.process.pid for name, one in airflow.components.items() if name != "triggerer"}

    def test_an_import_error_is_told_while_waiting_for_the_dag(self, airflow):
        broken = airflow.dags[0] / "broken.py"
        broken.write_text("raise RuntimeError('no such thing')  # airflow looks for its name, and for dag, in a file")
        with airflow.client() as client, pytest.raises(StackError, match="no such thing"):
            client.wait_for_dag("broken")
        broken.unlink()


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(300)
class TestKeptUp:
    """`python -m tests.stack`, as a newcomer runs it."""

    def test_ctrl_c_ends_it_and_all_that_it_started(self, tmp_path):
        command = [sys.executable, "-m", "tests.stack", "--state-dir", str(tmp_path), "--parts", "s3,ray"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as stack:
            lines = iter(stack.stdout.readline, "")
            assert any(line.startswith("Up after") for line in lines)
            below = psutil.Process(stack.pid).children(recursive=True)
            stack.send_signal(signal.SIGINT)
            assert "nothing is left running" in "".join(lines)
            assert stack.wait(60) == 0
        assert_gone(below)

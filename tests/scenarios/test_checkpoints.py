"""Checkpoint selection: corrupt, partial, oddly named or deleted checkpoints in the bucket."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, NoUsableCheckpoint, RecordUnreadable, StorePermissionDenied
from airflow_provider.core.identity import TaskInstanceKey, experiment_uri
from airflow_provider.core.layout_v1 import RunV1, parse_run
from airflow_provider.core.record_parts import CheckpointFile
from airflow_provider.core.restore_policy import RestorePolicy
from airflow_provider.operators.training_try import Submitted
from airflow_provider.storage.experiment_records import ExperimentRecords
from airflow_provider.storage.object_store import ObjectStore, open_object_store
from airflow_provider.storage.s3 import S3ObjectStore
from tests.scenarios.conftest import Experiment
from tests.support.case_files import CASES, expected, objects
from tests.support.decisions import is_retried
from tests.support.experiment import ref
from tests.support.fake_jobs_client import job
from tests.support.odd_s3_server import Answer, OddS3Server
from tests.support.operator_run import World
from tests.support.records import outcome
from tests.support.training_try import Bench, job_id

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from tests.stack.s3 import S3Server

RUN = "train/resnet__a1/"


def second_try(experiment: Experiment, **changes: Any) -> Submitted:
    """Airflow's retry, up to its job."""
    training_try = experiment.bench.new_try(2, records=experiment.records, **changes)
    training_try.own()
    result = training_try.step()
    assert isinstance(result, Submitted)
    return result


def restore_point(experiment: Experiment) -> str | None:
    """What the newest claim saw."""
    claim = experiment.records.newest_claim()
    assert claim is not None
    return claim.checkpoint_seen


@pytest.mark.scenario("C01")
def test_a_half_checkpoint_that_is_newer_than_the_manifest_is_not_restored(experiment: Experiment) -> None:
    """The driver was killed while ranks 2 and 3 had not uploaded: the retry takes the committed one, deletes nothing."""
    experiment.left_by_plain_ray("C01", RUN)
    before = set(experiment.written())
    assert any(expected("C01")["ignored"][0] in key for key in before)
    assert second_try(experiment).ref == ref(1, 2)
    assert restore_point(experiment) == expected("C01")["selected"]
    assert before <= set(experiment.written())


@pytest.mark.scenario("C02")
def test_a_latest_checkpoint_that_is_gone_is_found_before_the_post(experiment: Experiment) -> None:
    """Its objects were removed behind Ray's back: the newest usable one is restored, and the skip is said."""
    experiment.left_by_plain_ray("C02", RUN)
    second_try(experiment)
    assert restore_point(experiment) == expected("C02")["usable_fallback"]
    gone = expected("C02")["latest_in_snapshot"]
    assert f"checkpoint {gone} can't be restored: no file is left of it" in experiment.bench.said


@pytest.mark.scenario("C02")
def test_on_corrupt_fail_refuses_before_the_post_and_for_good(experiment: Experiment) -> None:
    """Who forbids going back gets an error that names the checkpoint, and no job."""
    experiment.left_by_plain_ray("C02", RUN)
    with pytest.raises(NoUsableCheckpoint, match=expected("C02")["latest_in_snapshot"]) as caught:
        second_try(experiment, restore=RestorePolicy(on_corrupt="fail"))
    assert not is_retried(caught.value)
    assert experiment.bench.client.posted == []


@pytest.mark.scenario("C04")
def test_an_empty_manifest_beside_checkpoints_is_refused_with_their_names(experiment: Experiment) -> None:
    """A crash left 0 bytes: nothing starts over them, and the error says what a person can choose from."""
    experiment.left_by_plain_ray("C04", RUN)
    with pytest.raises(RecordUnreadable, match="0 bytes") as caught:
        second_try(experiment)
    for name in expected("C04")["candidates"]:
        assert name in str(caught.value)
    assert not is_retried(caught.value)
    assert experiment.bench.client.posted == []
    assert layout.claim(1, 2) not in experiment.written()


@pytest.mark.scenario("C04")
def test_an_empty_manifest_of_a_fenced_attempt_names_that_attempts_checkpoints(world: World) -> None:
    """The same fault in the layout that the provider itself writes."""
    bench = world.bench
    bench.own(1)
    bench.claim(1)
    bench.commit(*(f"checkpoint_{n:02d}" for n in range(12)))
    bench.store.put_raw(layout.manifest(1, 1), b"")
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "FAILED")
    training_try = bench.new_try(2)
    training_try.own()
    with pytest.raises(RecordUnreadable, match=r"checkpoint_02, .*checkpoint_11 and 2 older ones") as caught:
        training_try.step()
    assert "records" not in str(caught.value).partition("beside it lie")[2]


@pytest.mark.scenario("C13")
def test_a_clear_waits_for_the_old_jobs_last_commit_before_it_chooses() -> None:
    """On its way out the old job commits Y and, with num_to_keep=1, deletes X: the next attempt sees Y."""
    bench = Bench()
    bench.own(1)
    bench.claim(1)
    (x,) = bench.commit("checkpoint_X")
    bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "RUNNING")
    bench.client.ends_on_stop = False
    committed: list[str] = []

    def last_commit(_: float) -> None:
        committed.extend(bench.commit("checkpoint_Y"))
        bench.store.delete(f"g000001/{x}/model.pt")
        bench.client.jobs[job_id(1, 1)] = job(job_id(1, 1), "STOPPED")

    training_try = bench.new_try(2, max_tries=6)
    training_try.sleep = last_commit
    training_try.own()
    training_try.step()
    assert len(committed) == 1, "the retention fired once"
    claim = bench.records.newest_claim()
    assert claim is not None
    assert (claim.ref, claim.checkpoint_seen) == (ref(1, 2), committed[0])


def clear_after_success(world: World, on_clear: str) -> Any:
    """Yesterday's success of ten epochs is cleared; gives the new try's trigger."""
    trigger = world.defer()
    world.succeed(trigger, num_checkpoints=10)
    assert world.resume(trigger)["new_checkpoints"] == 10
    world.next_try(is_clear=True)
    return world.defer(world.operator(on_clear=on_clear))


@pytest.mark.scenario("C15")
@pytest.mark.parametrize("on_clear", ["auto", "fresh"])
def test_a_cleared_success_trains_anew_and_leaves_the_old_run_alone(world: World, on_clear: str) -> None:
    """Ray would restore the last checkpoint, do nothing and succeed: a fresh generation begins instead."""
    trigger = clear_after_success(world, on_clear)
    assert (trigger.generation, trigger.attempt) == (2, 1)
    assert len([key for key in world.bench.written() if key.startswith("g000001/") and "model.pt" in key]) == 10
    claim = world.records.newest_claim()
    assert claim is not None
    assert claim.checkpoint_seen is None


@pytest.mark.scenario("C15")
@pytest.mark.parametrize("is_strict", [False, True])
def test_a_cleared_success_that_is_restored_says_that_nothing_new_came(world: World, is_strict: bool) -> None:
    """Who chooses "restore" sees 0 new checkpoints, or a failure where new ones are required."""
    trigger = clear_after_success(world, "restore")
    assert (trigger.generation, trigger.attempt) == (1, 2)
    restored = world.records.newest_claim()
    assert restored is not None
    record = outcome(latest_checkpoint=restored.checkpoint_seen)
    world.end(world.server.jobs[trigger.submission_id], "SUCCEEDED", attempt=2, record=record)
    operator = world.operator(on_clear="restore", require_new_checkpoint=is_strict)
    if is_strict:
        with pytest.raises(Exception, match="no new checkpoint") as caught:
            world.resume(trigger, operator=operator)
        assert not is_retried(caught.value)
    else:
        result = world.resume(trigger, operator=operator)
        assert result["new_checkpoints"] == expected("C15")["on_clear=restore"]["new_checkpoints"]
        assert result["latest_checkpoint"]["name"].endswith("checkpoint_9")


@pytest.mark.scenario("C17")
def test_a_role_that_may_not_list_is_refused_and_nothing_starts() -> None:
    """403 for a listing is no empty experiment: checkpoints may lie there."""

    class NoListing(OddS3Server):
        def do(self, method: str, key: str, body: bytes, *, headers: Message) -> Answer:
            if (method, key) == ("GET", ""):
                return Answer(403, (CASES / "C17" / "403.xml").read_bytes())
            return super().do(method, key, body, headers=headers)

    bench = Bench()
    with NoListing() as server:
        server.objects["x/g000001/attempts/000001/checkpoint_1/model.pt"] = b"weights"
        store = S3ObjectStore("s3://models/x", client_factory=server.client)
        with pytest.raises(StorePermissionDenied, match=rf"{expected('C17')['action']} on s3://models/x/") as caught:
            bench.new_try(1, records=ExperimentRecords(store)).own()
    assert not is_retried(caught.value)
    assert bench.client.posted == []
    assert len(server.objects) == 1, "nothing was written"


# --- keys, pages and slashes, on a real S3 server ----------------------------------------------------------------------


def put_all(client: S3Client, prefix: str, bodies: Mapping[str, bytes]) -> None:
    """A case's objects below a prefix."""

    def put(item: tuple[str, bytes]) -> None:
        client.put_object(Bucket="models", Key=f"{prefix}{item[0]}", Body=item[1])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, bodies.items()))


def run_at(store: ObjectStore) -> RunV1:
    """A run directory without manifest, as V1 leaves it."""
    return parse_run(CheckpointFile(key=info.key, size=info.size) for info in store.list(""))


def newest(store: ObjectStore) -> str:
    """Name of its newest checkpoint."""
    latest = run_at(store).latest
    assert latest is not None
    return latest.name


@pytest.mark.s3
@pytest.mark.scenario("C08")
def test_the_newest_of_1105_checkpoints_is_found_in_three_list_calls(s3: S3Server) -> None:
    """A listing's page ends at 1,000 keys: who stops there trains 105 checkpoints again."""
    client, prefix = s3.client(), f"{uuid.uuid4().hex}/"
    put_all(client, prefix, objects("C08", "train/big/"))
    sent: list[str] = []
    client.meta.events.register("before-send.s3", lambda request, **_: sent.append(request.url))
    store = open_object_store(f"s3://models/{prefix}", client_factory=lambda: client)
    assert newest(store) == expected("C08")["selected"]
    assert len(sent) <= expected("C08")["max_list_calls"]
    assert len(store.list_folders("")) == 1105


@pytest.mark.s3
@pytest.mark.scenario("C10")
def test_odd_names_are_read_byte_for_byte_also_after_a_trip_through_xcom(s3: S3Server) -> None:
    """One layer of encoding too many starts a second run beside the first, under `%20`."""
    client, prefix = s3.client(), f"{uuid.uuid4().hex}/"
    bodies = objects("C10")
    put_all(client, prefix, bodies)
    runs = expected("C10")["runs"]
    assert len(runs) == 4
    for run, checkpoint in runs.items():
        store = open_object_store(f"s3://models/{prefix}{run}", client_factory=lambda: client)
        for opened in (store, open_object_store(json.loads(json.dumps(store.uri)), client_factory=lambda: client)):
            assert f"{run}/{newest(opened)}" == checkpoint
            assert [info.key for info in opened.list("")] == ["checkpoint_000000/model.pt"]
        assert store.create_if_absent("claim.json", b"{}")
    whole = open_object_store(f"s3://models/{prefix}", client_factory=lambda: client)
    assert {info.key for info in whole.list("")} == bodies.keys() | {f"{run}/claim.json" for run in runs}


@pytest.mark.s3
@pytest.mark.scenario("C11")
def test_forms_of_the_storage_path_lead_to_one_directory_and_never_to_a_sibling(s3: S3Server) -> None:
    """`resnet-2` has newer checkpoints than `resnet`, and a path with two slashes is another key: refused."""
    client, bucket = s3.client(), f"bkt-{uuid.uuid4().hex}"
    s3.create_bucket(bucket)
    for key, body in objects("C11").items():
        if not key.startswith("/"):  # this server folds two slashes into one
            client.put_object(Bucket=bucket, Key=key, Body=body)
    forms = {form: right for form, right in expected("C11").items() if form.startswith("s3://")}
    assert len(forms) == 5
    task = TaskInstanceKey("d", "r", "train")
    for form, right in forms.items():
        path = form.replace("bkt", bucket)
        if isinstance(right, list):
            assert "refused" in right
            with pytest.raises(InvalidConfig, match="storage_path"):
                experiment_uri(path, task, experiment_name="resnet")
            continue
        uri = experiment_uri(path, task, experiment_name="resnet")
        found = newest(open_object_store(uri, client_factory=lambda: client))
        assert f"{uri}/{found}" == f"s3://{bucket}/{right}"


@pytest.mark.s3
@pytest.mark.scenario("C12")
def test_folder_markers_on_a_real_server_are_no_checkpoints(s3: S3Server) -> None:
    """An object `checkpoint_000002` beside the folder of that name, and a marker whose folder is empty."""
    client, prefix = s3.client(), f"{uuid.uuid4().hex}/"
    put_all(client, prefix, objects("C12", "train/m/"))
    store = open_object_store(f"s3://models/{prefix}", client_factory=lambda: client)
    assert newest(store) == expected("C12")["selected"]
    assert expected("C12")["empty"][0] not in [c.name for c in run_at(store).checkpoints]

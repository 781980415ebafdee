"""Reading a bucket for the page: little, bounded, and only what belongs to the task."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.core import layout
from airflow_provider.core.errors import ForeignExperiment, InvalidConfig, RecordUnreadable, StoreUnreachable
from airflow_provider.core.identity import TaskInstanceKey
from airflow_provider.core.records import AliveRecord, Phase, RecordSegment
from airflow_provider.plugin.bucket import READ_LIMIT_S, ExperimentReader, PatientStore
from airflow_provider.plugin.snapshots import CACHED_BYTES, MAX_WAITING, Snapshots
from airflow_provider.plugin.view.facts import Recorded, Seen
from airflow_provider.testing.memory_store import MemoryStore
from tests.support.counting_store import CountingStore
from tests.support.experiment import NOW, claim
from tests.support.lineage_page import KEY, facts, name, recorded, seen
from tests.support.records import entry
from tests.support.stored_experiment import write_experiment


@pytest.fixture
def store() -> MemoryStore:
    """Two attempts, the second one alive; a checkpoint of the first is set aside."""
    first, second = facts().attempts
    alive = AliveRecord(run_uid="u", phase=Phase.TRAINING, phase_since=NOW, written_at=NOW)
    store = MemoryStore("s3://models/x")
    write_experiment(store, replace(facts(), attempts=(first, replace(second, outcome=None, alive=alive))))
    return store


def test_a_look_gives_lineage_sign_of_life_and_why_a_checkpoint_is_set_aside(store: MemoryStore) -> None:
    found = ExperimentReader(store).look(KEY)
    assert [a.ref for a in found.lineage.attempts] == ["g1/a1", "g1/a2"]
    assert found.alive is not None
    assert found.alive.phase is Phase.TRAINING
    assert found.quarantine == {
        f"g000001/{name(1, 3)}": "its files are not those that were recorded: model.pt has 7 of 8 bytes"
    }


@pytest.mark.parametrize("other", [{"task_id": "t2"}, {"dag_id": "e"}, {"run_id": "r2"}, {"map_index": 0}])
def test_another_tasks_experiment_is_not_shown(store: MemoryStore, other: dict[str, Any]) -> None:
    """A task may name any path; its readers must not see through it into DAGs that they may not read."""
    with pytest.raises(ForeignExperiment):
        ExperimentReader(store).look(TaskInstanceKey(**{**KEY.__dict__, **other}))


def test_a_second_look_reads_what_has_changed_only(store: MemoryStore) -> None:
    counting = CountingStore(store)
    reader = ExperimentReader(counting)
    reader.look(KEY)
    counting.reset()
    reader.look(KEY)
    read = [key for verb, key in counting.log if verb == "read"]
    assert read == [layout.alive(1, 2)], "nor Ray's manifests, which are the largest"
    assert counting.num_calls < 20
    more = RecordSegment(checkpoints=(entry("attempts/000002/b", 9),), written_at=NOW)
    store.write(layout.segment(1, 2, "000002"), more.body())
    assert "g000001/attempts/000002/b" in [c.name for c in reader.look(KEY).lineage.checkpoints]
    changed = facts().owners[0].model_copy(update={"acted_on": claim(1, 2).ref})
    store.write(layout.owner(1), changed.body())
    assert reader.look(KEY).lineage.tries[0].acted_on == "g1/a2"


def test_an_experiment_that_was_deleted_and_begun_again_has_its_new_claims(store: MemoryStore) -> None:
    """The path of a task instance is always the same, and so are the names below it."""
    reader = ExperimentReader(store)
    reader.look(KEY)
    store.write(layout.claim(1, 1), claim(1, 1, submission_id="another-job").body())
    reader.look(KEY)
    assert reader.look(KEY).lineage.attempts[0].submission_id == "another-job"


@pytest.mark.parametrize("key", [layout.owner(1), layout.claim(1, 1), layout.manifest(1, 1), layout.alive(1, 2)])
def test_a_record_that_would_fill_the_memory_is_not_read(
    store: MemoryStore, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write to a bucket could else stop the API server of everybody."""
    monkeypatch.setattr("airflow_provider.plugin.bucket.LARGEST_BYTES", 10_000)
    store.write(key, b" " * 10_001)
    counting = CountingStore(store)
    with pytest.raises(RecordUnreadable, match="too large"):
        ExperimentReader(counting).look(KEY)
    assert ("read", key) not in counting.log


def test_only_a_sign_of_life_projects_nothing_anew(store: MemoryStore) -> None:
    reader = ExperimentReader(store)
    first = reader.look(KEY)
    alive = AliveRecord(run_uid="u", phase=Phase.LOST, phase_since=NOW, written_at=NOW)
    store.write(layout.alive(1, 2), alive.body())
    again = reader.look(KEY)
    assert again.lineage is first.lineage
    assert again.alive == alive


def test_a_reading_gives_up_at_its_limit(store: MemoryStore) -> None:
    now = 0.0
    patient = PatientStore(store, clock=lambda: now)
    patient.begin()
    assert patient.read(layout.owner(1)) is not None
    now = READ_LIMIT_S + 1
    with pytest.raises(StoreUnreachable, match="too slowly"):
        patient.list_folder("")
    patient.begin()
    assert patient.list_folder("owners/").objects


@pytest.mark.parametrize("num_checkpoints", [1, 400])
def test_what_a_reader_holds_is_told_without_measuring_it(num_checkpoints: int) -> None:
    """The rule of thumb is within a factor of two of what Python really allocates; small experiments cost nothing to speak of."""
    big = MemoryStore("s3://models/x")
    first = facts().attempts[0]
    entries = tuple(entry(name(1, i), i, metrics={"loss": 0.1 * i, "epoch": i}) for i in range(num_checkpoints))
    segment = RecordSegment(checkpoints=entries, written_at=NOW)
    write_experiment(big, replace(facts(), attempts=(replace(first, segments=(segment,)),)))
    reader = ExperimentReader(big)
    gc.collect()
    tracemalloc.start()
    try:
        kept = reader.look(KEY)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept.lineage.checkpoints) >= num_checkpoints
    calls = big.num_calls
    assert held / 2 - 50_000 < reader.num_bytes < held * 2
    assert big.num_calls == calls, "asked of nobody"


def test_records_that_are_too_many_together_are_not_held(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [info.size for info in store.list("")]
    monkeypatch.setattr("airflow_provider.plugin.bucket.LARGEST_BYTES", sum(sizes) - 1)
    with pytest.raises(RecordUnreadable, match="records are too large"):
        ExperimentReader(store).look(KEY)
    monkeypatch.setattr("airflow_provider.plugin.bucket.LARGEST_BYTES", sum(sizes))
    reader = ExperimentReader(store)
    for _ in range(3):  # each reading is counted for itself
        reader.look(KEY)


def test_a_reading_that_is_refused_for_its_size_holds_only_what_is_remembered(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it was projected: counted as if it were, each look at one huge experiment would drop all the others."""
    taken = sum(info.size for info in store.list(""))
    monkeypatch.setattr("airflow_provider.plugin.bucket.LARGEST_BYTES", taken - 1)
    reader = ExperimentReader(store)
    with pytest.raises(RecordUnreadable):
        reader.look(KEY)
    assert 0 < reader.num_bytes <= taken
    monkeypatch.setattr("airflow_provider.plugin.bucket.LARGEST_BYTES", taken)
    reader.look(KEY)
    whole = reader.num_bytes
    assert whole > 2 * taken, "the projection counts"
    monkeypatch.setattr("airflow_provider.plugin.bucket.LARGEST_BYTES", taken - 1)
    with pytest.raises(RecordUnreadable):
        reader.look(KEY)
    assert reader.num_bytes == whole, "what was seen before is still there"


def test_a_version_tells_what_has_changed_and_not_that_it_was_read_again(store: MemoryStore) -> None:
    reader = ExperimentReader(store)
    first = reader.look(KEY)
    assert reader.look(KEY).version == first.version
    assert ExperimentReader(store).look(KEY).version != first.version, "another reader can't know"
    found = [first.version]
    for key, record in (
        (layout.alive(1, 2), AliveRecord(run_uid="u", phase=Phase.LOST, phase_since=NOW, written_at=NOW)),
        (layout.alive(1, 1), AliveRecord(run_uid="u", phase=Phase.LOST, phase_since=NOW, written_at=NOW)),
        (layout.segment(1, 2, "000002"), RecordSegment(checkpoints=(entry(name(2, 8), 9),), written_at=NOW)),
        (layout.owner(3), facts().owners[1].model_copy(update={"k": 3})),
    ):
        store.write(key, record.body())
        found.append(reader.look(KEY).version)
        assert reader.look(KEY).version == found[-1]
    is_read = [True, True, False, True, True]  # nobody reads a sign of life of an attempt that has an outcome
    assert [a != b for a, b in zip(["", *found], found, strict=False)] == is_read


class Reader:
    """Counts looks; one waits until it is let go."""

    num_bytes = 0

    def __init__(self) -> None:
        self.looks = 0
        self.go = threading.Event()
        self.go.set()
        self.answers: list[Any] = []

    def look(self, key: TaskInstanceKey) -> Seen:
        self.looks += 1
        self.go.wait(20)
        answer = self.answers.pop(0) if self.answers else seen()
        if isinstance(answer, Exception):
            raise answer
        return answer


def of(task_id: str) -> Recorded:
    return replace(recorded(), key=TaskInstanceKey("d", "r", task_id))


async def test_many_who_ask_at_once_cost_one_reading() -> None:
    reader = Reader()
    snapshots = Snapshots(lambda _: reader)  # type: ignore[arg-type,return-value]
    found = await asyncio.gather(*(snapshots.get(of("t")) for _ in range(30)))
    assert reader.looks == 1
    assert all(one[0] is found[0][0] for one in found)
    snapshots.close()


async def test_the_loop_goes_on_while_buckets_are_silent() -> None:
    reader = Reader()
    reader.go.clear()
    snapshots = Snapshots(lambda _: reader, wait_s=0.5)  # type: ignore[arg-type,return-value]
    asking = [asyncio.create_task(snapshots.get(of(f"t{i}"))) for i in range(MAX_WAITING + 5)]
    num_turns = 0
    while not all(task.done() for task in asking):
        await asyncio.sleep(0.005)
        num_turns += 1
    problems = [task.result()[1].what for task in asking]  # type: ignore[union-attr]
    assert problems.count("The bucket has not answered yet") == MAX_WAITING
    assert sum("Too many pages" in what for what in problems) == 5
    assert num_turns > 5, "a loop that waits for a bucket turns once"
    reader.go.set()
    snapshots.close()


async def test_an_old_page_stays_while_the_bucket_is_away() -> None:
    now = 0.0
    reader = Reader()
    snapshots = Snapshots(lambda _: reader, clock=lambda: now)  # type: ignore[arg-type,return-value]
    first, _ = await snapshots.get(of("t"))
    reader.answers = [StoreUnreachable("No answer")]
    assert (await snapshots.get(of("t")))[1] is None, "fresh enough"
    now = 60.0
    again, problem = await snapshots.get(of("t"))
    assert again is first
    assert problem is not None
    assert problem.what == "No answer"
    now = 120.0
    assert (await snapshots.get(of("t")))[1] is None
    snapshots.close()


async def test_an_experiment_that_became_another_tasks_is_forgotten() -> None:
    now = 0.0
    reader = Reader()
    snapshots = Snapshots(lambda _: reader, clock=lambda: now)  # type: ignore[arg-type,return-value]
    await snapshots.get(of("t"))
    reader.answers = [ForeignExperiment("not yours")]
    now = 60.0
    found, problem = await snapshots.get(of("t"))
    assert found is None
    assert problem is not None
    assert problem.is_refusal
    snapshots.close()


async def test_a_connection_is_read_again_after_it_was_wrong() -> None:
    now = 0.0
    opened = []

    def open_reader(one: Recorded) -> Any:
        opened.append(one)
        if len(opened) == 1:
            raise InvalidConfig("There is no connection")
        return Reader()

    snapshots = Snapshots(open_reader, clock=lambda: now)
    assert (await snapshots.get(of("t")))[0] is None
    now = 60.0
    assert (await snapshots.get(of("t")))[0] is not None
    snapshots.close()


@pytest.mark.parametrize("is_failing", [False, True])
async def test_what_all_experiments_hold_together_has_a_limit(is_failing: bool) -> None:
    """A reading that broke off has filled the memory as much as one that came to its end."""
    reader = Reader()
    reader.num_bytes = CACHED_BYTES // 4
    if is_failing:
        reader.answers = [StoreUnreachable("too slow")] * 40
    snapshots = Snapshots(lambda _: reader)  # type: ignore[arg-type,return-value]
    for i in range(20):
        await snapshots.get(of(f"t{i}"))
        assert sum(entry.held_bytes for entry in snapshots._entries.values()) <= CACHED_BYTES + reader.num_bytes
    newest = list(snapshots._entries)[-1]
    assert newest[0].task_id == "t19"
    reader.num_bytes = 3 * CACHED_BYTES
    await snapshots.get(of("huge"))
    assert [address[0].task_id for address in snapshots._entries] == ["huge"], "the newest stays, alone"
    snapshots.close()


async def test_what_nobody_looks_at_is_forgotten() -> None:
    reader = Reader()
    snapshots = Snapshots(lambda _: reader)  # type: ignore[arg-type,return-value]
    for i in range(60):
        await snapshots.get(of(f"t{i}"))
    assert len(snapshots._entries) <= 51
    assert reader.looks == 60
    snapshots.close()

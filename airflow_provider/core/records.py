"""The experiment's records: what each process writes beside the checkpoints, and how it is read back.

Every record carries `schema_version`. Readers accept older versions and unknown fields; a newer version is a typed
error, because guessing at a rule we don't know could give two processes the right to commit.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import Self

from airflow_provider.core.errors import RecordUnreadable
from airflow_provider.core.failure import Failure, FailureKind
from airflow_provider.core.field_types import CheckpointName, Id, Number, Shown, UtcTime, shown_part
from airflow_provider.core.json_input import UnreadableJson, read_json
from airflow_provider.core.record_parts import SCHEMA_VERSION, AttemptRef, CheckpointFile, WarmStartRecord
from airflow_provider.core.restore_policy import RestorePolicy, known_fields

R = TypeVar("R", bound="Record")


class Record(BaseModel):
    """Base of all stored records: frozen, tolerant of unknown fields, times in UTC."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")
    record: ClassVar[str] = "record"
    schema_version: int = SCHEMA_VERSION

    def body(self) -> bytes:
        """The record as the bytes to store."""
        return self.model_dump_json(indent=1).encode()

    @classmethod
    def parse(cls, body: bytes, *, key: str) -> Self:
        """Read a stored record. Raises RecordUnreadable when it is torn, foreign, or newer than this release."""
        try:
            data = read_json(body)
        except UnreadableJson as error:
            raise _unreadable(cls, key, str(error)) from error
        if not isinstance(data, dict):
            raise _unreadable(cls, key, f"a JSON {type(data).__name__} instead of an object")
        version = data.get("schema_version")
        if not isinstance(version, int) or version < 1:
            seen = version if isinstance(version, int) else f"a {type(version).__name__}"
            raise _unreadable(cls, key, f"schema_version {seen}" if "schema_version" in data else "no schema_version")
        if version > SCHEMA_VERSION:
            raise RecordUnreadable(
                f"{key} was written by a newer release of this provider",
                known=f"it has schema_version {version}, this release reads up to {SCHEMA_VERSION}",
                change="upgrade airflow-provider-ray-train on this worker",
                key=key,
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            fields = ", ".join(".".join(shown_part(p) for p in e["loc"]) for e in error.errors()[:5])
            raise _unreadable(cls, key, f"wrong fields: {fields}") from None


def _unreadable(cls: type[Record], key: str, seen: str) -> RecordUnreadable:
    return RecordUnreadable(
        f"The {cls.record} record {key} can't be read",
        known=f"it holds {seen}; nothing was overwritten",
        change="restore the object from the bucket's versions, or choose another experiment path",
        key=key,
    )


class OwnerRecord(Record):
    """`owners/<k>`: a process that took the experiment. The newest k owns it."""

    record = "owner"
    k: int = Field(ge=1, le=999_999)
    dag_id: Id
    run_id: Id
    task_id: Id
    map_index: Number = -1
    dag_run_identity: Id
    """Random mark kept in the task's state store: a re-created DAG run has another one."""
    try_number: Number
    max_tries: Number
    clear_number: Number = 0
    created_at: UtcTime
    acted_on: AttemptRef | None = None
    """The attempt this owner claimed, attached to, reposted, collected or found finished."""
    submission_id: Id | None = None
    """Ray job of `acted_on`."""
    final: bool = False
    """A stop for good by a person (task marked failed or success): nothing of an older owner may run on."""
    final_because: Shown | None = None
    """What the person did. None: not final, or by a release that did not tell."""
    created_by: Shown = "try"
    """`try`, `listener` or `gc`."""
    gave_up: Failure | None = None
    """What ended the task for good in this try, for whoever waits for the training; None: another try follows, or who knows."""


class ClaimRecord(Record):
    """`claim.json`: the right to commit as attempt (generation, attempt), written before the POST."""

    record = "claim"
    k: int = Field(ge=1, le=999_999)
    generation: int = Field(ge=1, le=999_999)
    attempt: int = Field(ge=1, le=999_999)
    submission_id: Id
    address: Shown
    session_name: Id | None = None
    """Ray's session at claim time; another one later means that the cluster was replaced."""
    try_number: Number
    intent: Shown
    """`start`, `restore`, ... with the decision's reason."""
    restore_policy: Annotated[RestorePolicy, BeforeValidator(known_fields)] = RestorePolicy()
    """What this attempt restores by."""
    asked_before: Annotated[RestorePolicy | None, BeforeValidator(known_fields)] = None
    """The operator's `restore`, where it names a checkpoint and attempts before this one have committed under it.

    None where `restore_policy` is the operator's own, and in claims of older releases.
    """
    answers_clear: bool | None = None
    """Whether a person's clear asked for this attempt, so that an accepted success before it is trained on from.

    None in claims of older releases, which did not say.
    """
    warm_start: WarmStartRecord | None = None
    """The parent of this attempt's generation. It decides where training begins, never who may start or commit.

    None where no warm start was asked for, and in claims of older releases.
    """
    checkpoint_seen: CheckpointName | None = None
    """Newest usable checkpoint the Airflow side saw before claiming; the driver resolves again after it."""
    spec_digest: Id
    code_digest: Id
    deadline: UtcTime | None = None
    created_at: UtcTime

    @property
    def ref(self) -> AttemptRef:
        """The attempt this claim is for."""
        return AttemptRef(generation=self.generation, attempt=self.attempt)

    @property
    def asked(self) -> RestorePolicy:
        """The operator's `restore` as it was then."""
        return self.asked_before or self.restore_policy


class StopRecord(Record):
    """`stop-<k>.json`: owner k wants the attempt to end; a driver obeys it at start and while it runs."""

    record = "stop"
    k: int = Field(ge=1, le=999_999)
    reason: Shown
    ends: FailureKind | None = None
    """With which failure owner k's try ends by this, for whoever waits for the training; None: another try follows, or who knows."""
    created_at: UtcTime


class SkippedCheckpoint(BaseModel):
    """A checkpoint that was considered for the restore and not taken."""

    model_config = ConfigDict(frozen=True)
    checkpoint: CheckpointName
    why: Shown


class RestoredRecord(Record):
    """`restored.json`: what the driver really restored, resolved after its claim existed, and why."""

    record = "restored"
    checkpoint: CheckpointName | None
    """Name relative to the generation folder; None means from the start, or from the parent of a warm start."""
    warm_started_from: Id | None = None
    """URI of the parent checkpoint, where nothing of this generation was committed yet."""
    from_attempt: Number | None = None
    reason: Shown
    metrics: dict[str, Any] = {}
    progress_metric: Shown | None = None
    """The declared one, of an attempt whose deletions wait for the proof: tells of a fall where the driver could not.

    None without one, without the fence, and in records of older releases.
    """
    skipped: tuple[SkippedCheckpoint, ...] = ()
    uncommitted: tuple[Shown, ...] = ()
    """On disk but in no manifest: named, never chosen, never deleted."""
    fit: Number = 1
    """Which fit of the attempt this restore was for; the record holds the first."""
    fenced: bool = True
    """False: Ray's seams were missing, so this attempt's manifest is the one in the generation's folder."""
    created_at: UtcTime


class Phase(str, Enum):
    """What a driver is doing."""

    STARTING = "starting"
    WAITING = "waiting"
    """Waiting for nodes."""
    RESTORING = "restoring"
    TRAINING = "training"
    LOST = "lost"
    """A worker group was lost; Ray is about to restart it."""
    FINISHING = "finishing"


class AliveRecord(Record):
    """`alive.json`: the driver's sign of life, every 15 s by a thread. The store's clock gives its age."""

    record = "alive"
    run_uid: Id
    """Random per driver process: the same attempt running twice is noticed by a foreign uid."""
    phase: Phase
    phase_since: UtcTime
    wanted_workers: Shown = ""
    """`2` or `1-4` for elastic runs."""
    num_commits: Number = 0
    last_commit_at: UtcTime | None = None
    last_checkpoint: CheckpointName | None = None
    last_metrics: dict[str, Any] = {}
    num_restarts: Number = 0
    train_run_id: Id = ""
    """Ray's id of the running fit: the next attempt releases an elastic reservation by it."""
    written_at: UtcTime


class OutcomeState(str, Enum):
    """How an attempt ended."""

    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


class OutcomeRecord(Record):
    """`outcome.json`, written by the driver only (or carried inside `collected.json` where it is missing)."""

    record = "outcome"
    state: OutcomeState
    failure: Failure | None = None
    num_commits: Number = 0
    latest_checkpoint: CheckpointName | None = None
    best_checkpoint: CheckpointName | None = None
    restore_proven: Literal["yes", "no", "unknown"] = "unknown"
    fallen_metric: Shown | None = None
    """The declared progress metric that fell after a restore: what was committed behind its fall had begun again."""
    num_fits: Number = 0
    num_restarts: Number = 0
    fenced: bool = True
    """False when Ray's seams were missing and the attempt ran without fencing."""
    train_version: Literal["v1", "v2"] = "v2"
    ray_version: Shown = ""
    carried_from: AttemptRef | None = None
    """An earlier attempt of the generation had already finished; this one trained nothing."""
    finished_at: UtcTime


class CollectedRecord(Record):
    """`collected.json`: what the Airflow side concluded. The only record that is replaced (if-match)."""

    record = "collected"
    k: int = Field(ge=1, le=999_999)
    outcome: OutcomeRecord | None = None
    """Filled when the driver left none."""
    job_status: Shown | None = None
    job_message: Shown = ""
    accepted: bool | None = None
    """None until all checks ran; True: the result may be published; False: refused for `refused_because`."""
    refused_because: Shown | None = None
    published: bool | None = None
    """Of an accepted result: False until a try has published it, so that a clear in between publishes and trains nothing.

    None where nothing was accepted, and in records of older releases, which did not say.
    """
    written_at: UtcTime


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """One committed checkpoint with its file list."""

    checkpoint: CheckpointName
    """Name relative to the generation folder: `attempts/000001/checkpoint_...`."""
    files: tuple[CheckpointFile, ...] = ()
    metrics: dict[str, Any] = field(default_factory=dict)
    reported_at: UtcTime
    parent: CheckpointName | None = None
    """The checkpoint the reporting fit was restored from, or the one committed before it."""
    warm_started_from: Id | None = None
    """URI of the parent checkpoint, at the first commit after a warm start."""
    late: bool = False
    """Completed afterwards from the manifest: `files` were listed then, `reported_at` is the listing's time."""


class RestartEntry(BaseModel):
    """One worker-group failure inside an attempt and what Ray or we decided."""

    model_config = ConfigDict(frozen=True)
    failure: Failure
    decision: Shown
    at: UtcTime
    commits_before: Number = 0
    is_restart: bool = True
    """Whether Ray restarted the workers for it; else it ended a fit, or says what was decided then."""


class PhaseEntry(BaseModel):
    """The driver entered a phase, which lasts until the next entry of the attempt."""

    model_config = ConfigDict(frozen=True)
    phase: Phase
    at: UtcTime


class RecordSegment(Record):
    """`records/<seq>.json`: a closed segment of what happened, at most 1,000 entries, and 300 phases."""

    record = "segment"
    checkpoints: tuple[CheckpointEntry, ...] = ()
    restarts: tuple[RestartEntry, ...] = ()
    phases: tuple[PhaseEntry, ...] = ()
    """In their order; many short ones are merged, so that their seconds stay true. Older releases wrote none."""
    written_at: UtcTime


class QuarantineRecord(Record):
    """`quarantine/<checkpoint>.json`: never restore from this checkpoint until it is released."""

    record = "quarantine"
    checkpoint: CheckpointName
    reason: Shown
    attempt: Number
    created_at: UtcTime
    is_suspicion: bool = False
    """Set aside by one attempt to find out whether the checkpoint or the code is to blame: it binds that attempt only, so
    that a driver which dies before it knows passes nothing over."""
    released_by: Shown | None = None

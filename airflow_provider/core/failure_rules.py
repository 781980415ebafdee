"""What one exception means, by its class names and message. A table, so that a new case is one line and one test.

Classes are known by name, because this runs where neither Ray nor torch is installed and over several releases of both.
Messages are matched only where the class can carry such text: a `ValueError` that quotes "503" is no throttling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum

from airflow_provider.core.failure import FailureKind


class Precedence(IntEnum):
    """Which of several ranks' errors tells what happened; the smallest wins.

    When one rank fails the others routinely fail with it (collectives abort, connections reset), so most errors of a
    worker group are collateral. A preempted rank wins over everything: a real bug fires again on the next attempt.
    """

    PREEMPTED = 0
    OWN = 1
    """Errors of this provider know their kind."""
    CERTAIN = 2
    """Deterministic errors of code or set-up, which no dying neighbour can cause."""
    REFUSED = 3
    """The object store refused us."""
    MEMORY = 4
    DIED = 5
    """A process or a node is gone."""
    SERVICE = 6
    """A service was slow or away."""
    UNSURE = 7
    """Any other exception of the training code: its own if alone, possibly collateral beside a dead rank."""
    HANG = 8
    COLLATERAL = 9
    """A peer is gone: some other rank knows why."""


@dataclass(frozen=True)
class Rule:
    """Exceptions whose class is in `names` (bare, or qualified with a dot) and whose message matches `text`."""

    kind: FailureKind
    precedence: Precedence
    advice: str
    names: frozenset[str] = frozenset()
    text: re.Pattern[str] | None = None

    def matches(self, names: frozenset[str], message: str) -> bool:
        """Whether the rule is about this exception; `names` holds bare and qualified names of class and bases."""
        if self.names and self.names.isdisjoint(names):
            return False
        return self.text is None or self.text.search(message) is not None


@dataclass(frozen=True)
class SeenError:
    """One exception as plain values, so that a live exception and a line of a log tail are judged by the same rule."""

    name: str
    """Qualified class name, without `builtins.`."""
    message: str = ""
    bases: tuple[str, ...] = ()
    """Qualified names of its base classes, where known."""
    preempted: bool = False
    """Ray's flag on the error of an actor whose node was taken away."""
    kind: FailureKind | None = None
    """Set on errors of this provider."""
    is_context: bool = field(default=False, compare=False)
    """It was only being handled when the next one was raised; nobody said that it is the cause."""

    @property
    def names(self) -> frozenset[str]:
        """Bare and qualified names of the class and its bases."""
        both = (self.name, *self.bases)
        return frozenset(both) | {name.rpartition(".")[2] for name in both}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _text(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


_K, _P = FailureKind, Precedence
_STORE = r"(?s)(?:AWS Error|An error occurred \(|HTTP status \d{3}).*?"
_HTTP = _names("HTTPError HfHubHTTPError HTTPStatusError GatedRepoError RepositoryNotFoundError")

RULES: tuple[Rule, ...] = (
    # --- a node taken away with notice
    Rule(_K.PREEMPTION, _P.PREEMPTED, "a node was taken away", _names("PreemptionError")),
    Rule(
        _K.PREEMPTION,
        _P.PREEMPTED,
        "a node was taken away",
        _names("ActorDiedError RayActorError NodeDiedError"),
        _text(r"node was preempted|AUTOSCALER_DRAIN_PREEMPTED"),
    ),
    # --- memory: of the GPU (deterministic) or of the host
    Rule(
        _K.USER,
        _P.CERTAIN,
        "the model and batch don't fit the GPU, which repeats on every try: use a smaller batch, sharding or checkpointed activations",
        frozenset(),
        _text(r"(?:CUDA|HIP|XPU|MPS(?: backend)?) out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
    ),
    Rule(
        _K.OUT_OF_MEMORY,
        _P.MEMORY,
        "the node ran out of host memory: give workers more memory, or raise RAY_memory_usage_threshold",
        _names("ray.exceptions.OutOfMemoryError"),
    ),
    Rule(
        _K.OUT_OF_MEMORY,
        _P.MEMORY,
        "the node ran out of host memory: give workers more memory, or raise RAY_memory_usage_threshold",
        _names("OutOfMemoryError ActorDiedError RayActorError WorkerCrashedError"),
        # Not "OOM killer": Ray's advice under any dead process names it among "common causes".
        _text(r"low on memory|OUT_OF_MEMORY|memory monitor"),
    ),
    Rule(
        _K.OUT_OF_MEMORY,
        _P.MEMORY,
        "a data loading process was killed, probably for host or shared memory: fewer loader workers or a larger /dev/shm",
        _names("RuntimeError"),
        _text(r"DataLoader worker \(pid.*killed by signal: (?:Killed|Bus error)"),
    ),
    Rule(
        _K.USER,
        _P.CERTAIN,
        "the code asked for more memory than the process can have",
        _names("MemoryError RuntimeError"),
        _text(r"Unable to allocate|DefaultCPUAllocator: can't allocate memory"),
    ),
    # --- the object store, in the words of pyarrow and botocore
    Rule(
        _K.CREDENTIALS_EXPIRED,
        _P.REFUSED,
        "temporary credentials ran out; a new job gets new ones, and this recurs while they live shorter than the training",
        frozenset(),
        _text(_STORE + r"(?:ExpiredToken|EXPIRED_TOKEN|RequestExpired|token (?:has|is) expired)"),
    ),
    Rule(
        _K.PERMISSION,
        _P.REFUSED,
        "the object store refused the cluster's identity: allow this action on this prefix",
        frozenset(),
        _text(
            _STORE
            + r"(?:ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|SignatureDoesNotMatch"
            r"|MISSING_AUTHENTICATION_TOKEN|InvalidClientTokenId|(?<=HTTP status )40[13]\b|AllAccessDisabled)"
        ),
    ),
    Rule(_K.PERMISSION, _P.REFUSED, "the cluster has no S3 credentials", _names("NoCredentialsError")),
    Rule(_K.PERMISSION, _P.REFUSED, "the operating system refused access to a file", _names("PermissionError")),
    Rule(
        _K.CONFIG,
        _P.REFUSED,
        "the bucket does not exist at this endpoint",
        _names("OSError ClientError FileNotFoundError NoSuchBucket"),
        _text(r"NO_SUCH_BUCKET|NoSuchBucket|Bucket '[^']+' not found"),
    ),
    Rule(
        _K.THROTTLING,
        _P.SERVICE,
        "the object store asked to slow down; a checkpoint that was being written is incomplete",
        frozenset(),
        _text(
            _STORE
            + r"(?:SLOW_DOWN|SlowDown|THROTTLING|Throttling|TooManyRequests|(?<=HTTP status )(?:503|429)\b|SERVICE_UNAVAILABLE|ServiceUnavailable)"
        ),
    ),
    Rule(
        _K.NETWORK,
        _P.SERVICE,
        "the object store could not be reached",
        frozenset(),
        _text(
            _STORE
            + r"(?:NETWORK_CONNECTION|curlCode|REQUEST_TIMEOUT|RequestTimeout|INTERNAL_FAILURE|InternalError|(?<=HTTP status )5\d\d\b)"
        ),
    ),
    Rule(
        _K.NETWORK,
        _P.SERVICE,
        "a service could not be reached",
        _names(
            "EndpointConnectionError ConnectTimeoutError ReadTimeoutError ConnectionClosedError HTTPClientError ConnectTimeout ReadTimeout"
            " requests.exceptions.ConnectionError URLError gaierror MaxRetryError ProxyError IncompleteRead ChunkedEncodingError"
            " ServerDisconnectedError ClientConnectorError RemoteProtocolError SSLEOFError httpx.ConnectError httpx.ReadError"
        ),
    ),
    Rule(_K.PERMISSION, _P.REFUSED, "a service refused access", _HTTP, _text(r"\b40[13]\b")),
    Rule(_K.THROTTLING, _P.SERVICE, "a service asked to slow down", _HTTP, _text(r"\b429\b")),
    Rule(_K.NETWORK, _P.SERVICE, "a service failed", _HTTP, _text(r"\b5\d\d\b")),
    # --- Ray's own
    Rule(
        _K.CHECKPOINT,
        _P.CERTAIN,
        "Ray can't use the run directory as it is",
        _names("CheckpointManagerInitializationError"),
    ),
    Rule(
        _K.CAPACITY,
        _P.DIED,
        "the cluster did not place the workers in time",
        _names(
            "WorkerGroupStartupTimeoutError InsufficientClusterResourcesError TaskUnschedulableError ActorUnschedulableError"
        ),
    ),
    Rule(
        _K.HANG,
        _P.HANG,
        "workers were alive but did not go on",
        _names("WorkerHealthCheckTimeoutError CollectiveTimeoutError BroadcastCollectiveTimeoutError NCCLHangError"),
    ),
    Rule(
        _K.HANG,
        _P.HANG,
        "a collective operation never returned: one rank is stuck, slow or on another code path",
        _names("RuntimeError DistBackendError DistStoreError DistNetworkError DistError TimeoutError"),
        _text(
            r"Watchdog caught collective operation timeout|Timed out (?:waiting|after) \d+ ?m?s|ProcessGroup\w* .*timed? ?out"
            r"|wait timeout after|Socket Timeout"
        ),
    ),
    Rule(_K.CONFIG, _P.CERTAIN, "the runtime environment can't be built", _names("RuntimeEnvSetupError")),
    Rule(_K.AUTH, _P.CERTAIN, "the cluster refused our token", _names("ray.exceptions.AuthenticationError")),
    Rule(
        _K.INFRASTRUCTURE,
        _P.DIED,
        "a process or node died under the training",
        _names(
            "ActorDiedError RayActorError ActorUnavailableError WorkerCrashedError NodeDiedError LocalRayletDiedError OwnerDiedError"
            " ObjectLostError RaySystemError RpcError RayChannelError WorkerGroupStartupFailedError WorkerHealthCheckFailedError"
            " OutOfDiskError ObjectStoreFullError TaskPlacementGroupRemoved ActorPlacementGroupRemoved GetTimeoutError"
        ),
    ),
    Rule(
        _K.INFRASTRUCTURE,
        _P.DIED,
        "a process or node died under the training",
        _names("WorkerGroupError TrainingFailedError RayTaskError RayTrainError RayError"),
        _text(r"SYSTEM_ERROR|died unexpectedly|node has died|worker process .*died|segfault|SIGSEGV|SIGKILL|SIGABRT"),
    ),
    Rule(
        _K.INFRASTRUCTURE,
        _P.DIED,
        "a node's disk is full",
        _names("OSError"),
        _text(r"No space left on device|Errno 28"),
    ),
    Rule(
        _K.INFRASTRUCTURE,
        _P.DIED,
        "a disk or a shared file system failed",
        _names("OSError"),
        _text(r"\[Errno (?:5|107|116)\]"),
    ),
    Rule(
        _K.INFRASTRUCTURE,
        _P.DIED,
        "a GPU or its driver failed",
        _names("RuntimeError AcceleratorError"),
        _text(
            r"(?:CUDA|HIP) error: (?:uncorrectable|unknown error|no CUDA-capable|all CUDA-capable|.*busy or unavailable|.*fallen off"
            r"|.*ECC|.*NVLink|system not yet|.*initialization error|.*Invalid access of peer)|Xid"
        ),
    ),
    Rule(
        _K.INFRASTRUCTURE,
        _P.DIED,
        "a data loading process died",
        _names("RuntimeError"),
        _text(r"DataLoader worker .*(?:exited unexpectedly|killed by signal)"),
    ),
    # --- a peer is gone
    Rule(
        _K.INFRASTRUCTURE,
        _P.COLLATERAL,
        "the connection to another worker broke",
        _names("RuntimeError DistBackendError DistNetworkError DistStoreError DistError"),
        _text(
            r"(?i)closed by (?:remote )?peer|connection reset|broken pipe|connection refused|remote process exited|NCCL error|ncclSystemError"
            r"|ncclRemoteError|gloo|process ?group|communicator was aborted|failed to recv|TCPStore|recvValue failed|sendBytes failed"
        ),
    ),
    Rule(
        _K.INFRASTRUCTURE,
        _P.COLLATERAL,
        "the connection to another worker broke",
        _names("DistBackendError DistNetworkError DistStoreError DistError"),
    ),
    Rule(
        _K.NETWORK,
        _P.COLLATERAL,
        "a connection broke",
        _names(
            "ConnectionError ConnectionResetError ConnectionAbortedError ConnectionRefusedError BrokenPipeError EOFError"
        ),
        _text(r"(?i)reset|broken|refused|closed|aborted|peer|remote|^$"),
    ),
    Rule(
        _K.NETWORK,
        _P.COLLATERAL,
        "a connection broke",
        _names("OSError TimeoutError SSLError"),  # errors that Python has no class for
        _text(r"\[Errno (?:100|101|110|112|113)\]|^(?:The read operation )?timed out$|EOF occurred in violation"),
    ),
    # --- the request and the code
    Rule(
        _K.CONFIG,
        _P.CERTAIN,
        "the cluster can't import it: add it to working_dir, py_modules or the image",
        _names("ModuleNotFoundError ImportError"),
    ),
    Rule(
        _K.CONFIG, _P.CERTAIN, "this Ray release refuses the call", _names("DeprecationWarning RayDeprecationWarning")
    ),
    Rule(
        _K.USER,
        _P.CERTAIN,
        "report plain numbers and strings: this metric can't be stored as JSON",
        frozenset(),
        _text(r"Unable to serialize unknown type"),
    ),
    Rule(
        _K.USER,
        _P.CERTAIN,
        "a deterministic error in the training code",
        _names(
            "KeyError IndexError LookupError ValueError TypeError AssertionError AttributeError NameError UnboundLocalError"
            " ZeroDivisionError NotImplementedError SyntaxError IndentationError RecursionError FileNotFoundError ArithmeticError"
            " OverflowError UnicodeError"
        ),
    ),
    Rule(
        _K.USER,
        _P.CERTAIN,
        "a deterministic error in the training code",
        _names("RuntimeError AcceleratorError"),
        _text(r"device-side assert|size mismatch|shapes cannot be multiplied|Expected all tensors|must match the size"),
    ),
    Rule(_K.STOPPED, _P.OWN, "it was interrupted", _names("KeyboardInterrupt TaskCancelledError")),
)


def rule_for(seen: SeenError) -> Rule:
    """What this exception means by itself."""
    if seen.kind is not None:
        return Rule(seen.kind, Precedence.OWN, "")
    if seen.preempted:
        return Rule(FailureKind.PREEMPTION, Precedence.PREEMPTED, "a node was taken away")
    names = seen.names
    for rule in RULES:
        if rule.matches(names, seen.message):
            return rule
    if seen.name.startswith("ray."):
        # An error class of Ray that we don't know is the cluster's, not the training code's.
        return Rule(FailureKind.INFRASTRUCTURE, Precedence.DIED, "Ray failed under the training")
    return Rule(FailureKind.USER, Precedence.UNSURE, "an error raised by the training code")

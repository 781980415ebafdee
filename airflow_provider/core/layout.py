"""Where each record of an experiment lies. Keys are relative to the experiment path; numbers have six digits from 1."""

from __future__ import annotations

import re

MANIFEST = "checkpoint_manager_snapshot.json"
"""Ray Train V2's name for the list of committed checkpoints."""
RECORD_FOLDERS = frozenset({"attempts", "quarantine", "records"})
"""Folders that lie beside checkpoints and are none."""

_OWNER = re.compile(r"^owners/([0-9]{6})\.json\Z")
_GENERATION = re.compile(r"^g([0-9]{6})/")
_ATTEMPT = re.compile(r"^g([0-9]{6})/attempts/([0-9]{6})/")
_COPY = "restored-from-"
_STOP = re.compile(r"/stop-([0-9]{6})\.json\Z")


def owner(k: int) -> str:
    """Key of owner record `k`."""
    return f"owners/{k:06d}.json"


def generation(g: int) -> str:
    """Folder of generation `g`, without a trailing slash."""
    return f"g{g:06d}"


def attempt(g: int, n: int) -> str:
    """Folder of attempt `n` of generation `g`, without a trailing slash."""
    return f"{generation(g)}/attempts/{n:06d}"


def claim(g: int, n: int) -> str:
    """Key of the claim that gives attempt `n` the right to commit."""
    return f"{attempt(g, n)}/claim.json"


def stop(g: int, n: int, k: int) -> str:
    """Key of owner `k`'s stop record on an attempt."""
    return f"{attempt(g, n)}/stop-{k:06d}.json"


def restored(g: int, n: int) -> str:
    """Key of what the driver really restored."""
    return f"{attempt(g, n)}/restored.json"


def alive(g: int, n: int) -> str:
    """Key of the driver's sign of life."""
    return f"{attempt(g, n)}/alive.json"


def outcome(g: int, n: int) -> str:
    """Key of the driver's own word on how the attempt ended."""
    return f"{attempt(g, n)}/outcome.json"


def collected(g: int, n: int) -> str:
    """Key of what the Airflow side made of the outcome."""
    return f"{attempt(g, n)}/collected.json"


def segments(g: int, n: int) -> str:
    """Prefix of the record segments of an attempt."""
    return f"{attempt(g, n)}/records/"


def segment(g: int, n: int, name: str) -> str:
    """Key of one record segment. Driver: six digits; late writers: a name nobody else uses."""
    return f"{attempt(g, n)}/records/{name}.json"


def manifest(g: int, n: int) -> str:
    """Key of Ray's manifest of one attempt."""
    return f"{attempt(g, n)}/{MANIFEST}"


def published_manifest(g: int) -> str:
    """Key of the plain manifest, written at the end, from which Ray alone can restore."""
    return f"{generation(g)}/{MANIFEST}"


def quarantine(g: int, checkpoint_dir_name: str) -> str:
    """Key of the quarantine record of a checkpoint (its name relative to the generation folder)."""
    # A copy's name holds `~` itself: escaped, or its quarantine would be read as another checkpoint's.
    name = checkpoint_dir_name.replace("%", "%25").replace("~", "%7E").replace("/", "~")
    return f"{generation(g)}/quarantine/{name}.json"


def quarantined_name(key: str) -> str | None:
    """Checkpoint name (relative to the generation folder) of a quarantine record's key."""
    _, found, name = key.partition("/quarantine/")
    if not found:
        return None
    return name.removesuffix(".json").replace("~", "/").replace("%7E", "~").replace("%25", "%")


def is_of(n: int, name: str) -> bool:
    """Whether a checkpoint lies in the folder of attempt `n`."""
    return name.startswith(f"attempts/{n:06d}/")


def is_commit_of(n: int, name: str) -> bool:
    """Whether attempt `n` committed it itself: in its folder, and no copy of what it restored."""
    return is_of(n, name) and copied_from(name) is None


def copy_name(n: int, original: str) -> str:
    """Name of the copy that attempt `n` restores instead of a retired checkpoint. It lies in its folder, but it is no commit of its own.

    A copy of a copy names the commit that both were made of.
    """
    commit = copied_from(original) or original
    return f"attempts/{n:06d}/{_COPY}{commit.replace('/', '~')}"


def copied_from(name: str) -> str | None:
    """The checkpoint that a copy was made of; None for any other name."""
    folder = name.rpartition("/")[2]
    return folder.removeprefix(_COPY).replace("~", "/") if folder.startswith(_COPY) else None


def is_ours(key: str) -> bool:
    """Whether a key, or a folder with its slash, is what an experiment keeps; anything else in its folder is another's."""
    return key.startswith("owners/") or parse_generation(key) is not None


def parse_owner(key: str) -> int | None:
    """Number of an owner record's key, or None for any other key."""
    match = _OWNER.match(key)
    return int(match[1]) if match else None


def parse_generation(key: str) -> int | None:
    """Generation of a key, or None."""
    match = _GENERATION.match(key)
    return int(match[1]) if match else None


def parse_attempt(key: str) -> tuple[int, int] | None:
    """(generation, attempt) of a key inside an attempt's folder, or None."""
    match = _ATTEMPT.match(key)
    return (int(match[1]), int(match[2])) if match else None


def parse_stop(key: str) -> int | None:
    """Owner number of a stop record's key, or None."""
    match = _STOP.search(key)
    return int(match[1]) if match else None

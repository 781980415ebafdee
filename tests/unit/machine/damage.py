"""What happens to objects in a bucket: checkpoints lose files or bytes, records are torn, and people restore them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.core import layout
from tests.unit.machine.drivers import BODY, FILES

if TYPE_CHECKING:
    from tests.unit.machine.world import World

OF_CHECKPOINTS = ("gone", "zero-byte", "partly gone", "truncated")
_NEEDS_RECORD = ("partly gone", "truncated")
"""Without a recorded list of files only "no file" and "all files empty" are found."""
_RECORDS = (layout.MANIFEST, "/outcome.json", "/claim.json", "/alive.json", "/collected.json")

Named = tuple[int, str]


def breakable(world: World) -> list[Named]:
    """Checkpoints that are whole."""
    return [named for named, c in sorted(world.truth.checkpoints.items()) if c.is_usable]


def break_checkpoint(world: World, named: Named, how: str) -> None:
    """Damage its objects."""
    generation, name = named
    folder = f"{layout.generation(generation)}/{name}"
    if how in _NEEDS_RECORD and not is_recorded(world, named):
        return
    for file in FILES[:1] if how in _NEEDS_RECORD else FILES:
        if how in ("gone", "partly gone"):
            world.bucket.remove_raw(f"{folder}/{file}")
        else:
            world.bucket.put_raw(f"{folder}/{file}", b"" if how == "zero-byte" else BODY[:-1])
    found = world.truth.checkpoints[named]
    found.damage, found.damaged_at = how, world.truth.now


def is_recorded(world: World, named: Named) -> bool:
    """Whether a record lists its files."""
    text = f'"checkpoint": "{named[1]}"'
    keys = [k for k in world.bucket.names() if "/records/" in k and layout.parse_generation(k) == named[0]]
    return any(text in (world.bucket.body(key) or b"").decode() for key in keys)


def tearable(world: World) -> list[str]:
    """Records that no fault of another kind stands for; the newest attempt's come last."""
    keys = [k for k in world.bucket.names() if k.endswith(_RECORDS) or k.startswith("owners/")]
    return [key for key in keys if key not in world.torn]


def tear(world: World, key: str, how: bytes) -> None:
    """Half of a record, or nothing of it."""
    world.torn[key] = world.bucket.body(key) or b""
    world.bucket.put_raw(key, how)


def repair(world: World) -> None:
    """A person restores objects from the bucket's versions, those that nobody has written again since."""
    for key, body in world.torn.items():
        now = world.bucket.body(key)
        if now is not None and not now.endswith(b"}"):
            world.bucket.put_raw(key, body)
    world.torn.clear()

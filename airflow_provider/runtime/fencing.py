"""Only the newest claim may add or delete checkpoints: a filesystem that asks first, and paths of its own per attempt.

Ray writes its manifest and deletes by retention before any callback runs, so a check in a callback comes too late. Here
it sits in the two filesystem calls that Ray makes from Python before anything else: `create_dir` before an upload and
`delete_dir` in retention. Bulk copies stay native. Deletions may also have to wait: see `held_deletions`.

A training's own `checkpoint_upload_fn` is asked only while the claim is held, and is given a name in the attempt's folder.
Known limitation: where it writes is its own business, as it is with NO_UPLOAD and with code that writes to the bucket itself.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import pyarrow.fs as pafs
from ray.train.v2._internal.execution.storage import StorageContext

from airflow_provider.core import layout
from airflow_provider.core.errors import InvalidConfig, StorePermissionDenied, Superseded
from airflow_provider.core.manifest import parse_manifest
from airflow_provider.core.record_parts import AttemptRef
from airflow_provider.core.spec import StorageConfig
from airflow_provider.runtime.held_deletions import is_held
from airflow_provider.runtime.storage import s3_options, split_uri

if TYPE_CHECKING:
    from ray.train import Checkpoint

    Upload = Callable[[Checkpoint, str], Checkpoint]

_RESERVED = frozenset({"records"})


@dataclass(frozen=True)
class Fence:
    """Which attempt holds the claim, and where a newer one would show. `root` is the experiment on the filesystem."""

    root: str
    ref: AttemptRef

    @property
    def newer_claims(self) -> tuple[str, str]:
        """Numbers have no gaps, so one of these two exists as soon as any newer claim does."""
        g, n = self.ref.rank
        keys = (layout.claim(g, n + 1), layout.claim(g + 1, 1))
        return (posixpath.join(self.root, keys[0]), posixpath.join(self.root, keys[1]))

    def check(self, filesystem: pafs.FileSystem) -> None:
        """Raise Superseded if a newer claim exists. An unreadable bucket raises too: not knowing is not holding."""
        for path in self.newer_claims:
            try:
                filesystem.open_input_file(path).close()
            except FileNotFoundError:
                continue
            raise Superseded(
                f"Attempt {self.ref} may not write any more",
                known=f"a newer claim exists: {path.removeprefix(self.root + '/')}",
            )

    def check_deletable(self, path: str) -> None:
        """Raise unless `path` lies below this generation's folder: a warm start's parent is somebody else's."""
        folder = posixpath.join(self.root, layout.generation(self.ref.generation)) + "/"
        inner = posixpath.normpath(path).removeprefix(folder)
        if not posixpath.normpath(path).startswith(folder) or inner.strip("/") in ("", "attempts"):
            raise StorePermissionDenied(
                "Refused to delete outside this experiment's generation", known=f"{path} is not below {folder}"
            )


class _FencedCalls:
    """The calls that ask the fence first; mixed into one of pyarrow's filesystems."""

    fence: Fence

    def create_dir(self, path: str, *, recursive: bool = True) -> None:
        """Create a directory, if no newer claim exists."""
        self.fence.check(self)  # mixed into a FileSystem
        super().create_dir(path, recursive=recursive)  # type: ignore[misc]

    def delete_dir(self, path: str) -> None:
        """Delete a directory of this generation, if no newer claim exists."""
        self._delete(path, partial(super().delete_dir, path))  # type: ignore[misc]

    def delete_dir_contents(self, path: str, **options: Any) -> None:
        """Empty a directory of this generation, if no newer claim exists."""
        self._delete(path, partial(super().delete_dir_contents, path, **options))  # type: ignore[misc]

    def delete_file(self, path: str) -> None:
        """Delete a file of this generation, if no newer claim exists."""
        self._delete(path, partial(super().delete_file, path))  # type: ignore[misc]

    def _delete(self, path: str, deletion: Callable[[], object]) -> None:
        self.fence.check_deletable(path)
        if is_held(self.fence, partial(self._delete, path, deletion)):
            return
        self.fence.check(self)
        deletion()


class FencedS3FileSystem(_FencedCalls, pafs.S3FileSystem):  # type: ignore[misc]  # pyarrow has no types
    """S3 behind a fence. Pickled by its arguments, which hold no keys."""

    def __init__(self, fence: Fence, **options: Any) -> None:
        """`options` are pyarrow's."""
        super().__init__(**options)
        self.fence, self.options = fence, options

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild with the fence in each worker."""
        return (_rebuild_s3, (self.fence, self.options))


class FencedLocalFileSystem(_FencedCalls, pafs.LocalFileSystem):  # type: ignore[misc]
    """A shared file system behind a fence."""

    def __init__(self, fence: Fence) -> None:
        """Nothing but the fence to set up."""
        super().__init__()
        self.fence = fence

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild with the fence in each worker."""
        return (FencedLocalFileSystem, (self.fence,))


def _rebuild_s3(fence: Fence, options: dict[str, Any]) -> FencedS3FileSystem:
    return FencedS3FileSystem(fence, **options)


def fenced_filesystem(uri: str, config: StorageConfig, *, ref: AttemptRef) -> pafs.FileSystem:
    """The filesystem that this attempt's controller and workers use."""
    scheme, root = split_uri(uri)
    fence = Fence(root, ref)
    if scheme == "file":
        return FencedLocalFileSystem(fence)
    return FencedS3FileSystem(fence, **s3_options(config, bucket=root.partition("/")[0]))


class AttemptStorageContext(StorageContext):  # type: ignore[misc]  # Ray's class has no types
    """Ray's run directory is the generation's folder; manifest and new checkpoints lie in this attempt's own."""

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        """`filesystem` is one of the fenced ones."""
        fence: Fence = filesystem.fence
        g, n = fence.ref.rank
        self.attempt_folder = layout.attempt(g, n).removeprefix(layout.generation(g) + "/")
        self.manifest_path = posixpath.join(fence.root, layout.manifest(g, n))
        super().__init__(
            storage_path=fence.root, experiment_dir_name=layout.generation(g), storage_filesystem=filesystem
        )

    @property
    def checkpoint_manager_snapshot_path(self) -> str:
        """Each attempt has its own manifest: a superseded one overwrites nobody's."""
        return self.manifest_path

    def restored_metrics(self) -> dict[str, Any] | None:
        """Metrics of the checkpoint that a controller which starts now gives its workers; None where there is none."""
        try:
            with self.storage_filesystem.open_input_file(self.manifest_path) as file:
                latest = parse_manifest(file.read(), key=self.manifest_path).latest
        except FileNotFoundError:
            return None
        return latest.metrics if latest else None

    def persist_current_checkpoint(self, checkpoint: Checkpoint, checkpoint_dir_name: str) -> Checkpoint:
        """Upload below the attempt's folder: a name that is reported again by a later attempt mixes with nothing."""
        return super().persist_current_checkpoint(checkpoint, self.own_name(checkpoint_dir_name))

    def guarded(self, upload: Upload) -> Upload:
        """A `checkpoint_upload_fn` behind the fence: a superseded worker uploads nothing, and a name is the attempt's own."""

        @wraps(upload)
        def guarded(checkpoint: Checkpoint, checkpoint_dir_name: str) -> Checkpoint:
            name = self.own_name(checkpoint_dir_name)
            self.storage_filesystem.fence.check(self.storage_filesystem)
            return upload(checkpoint, name)

        return guarded

    def own_name(self, checkpoint_dir_name: str) -> str:
        """A reported name relative to Ray's run directory. Raises InvalidConfig where it would leave the attempt's folder."""
        parts = checkpoint_dir_name.split("/")
        if checkpoint_dir_name.startswith("/") or ".." in parts or parts[0] in _RESERVED:
            raise InvalidConfig(
                f"checkpoint_dir_name {checkpoint_dir_name!r} can't be used",
                known="it leaves the attempt's folder or is the name of our records",
                change="report a plain name such as 'checkpoint_000003'",
            )
        return f"{self.attempt_folder}/{checkpoint_dir_name}"

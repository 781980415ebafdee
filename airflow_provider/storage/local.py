"""A folder on a local disk or an NFS share as an object store.

Each write makes a new file beside the data and links or renames it into place, so a reader sees the whole old object or the
whole new one. Temporary files and locks lie in `.objectstore` below the root, which listings leave out.

Known limitations: `replace_if_match` excludes other writers by `flock`, which needs NFSv4 (or a lock daemon) to reach other
machines, and only those that use this class. The file system must know hard links. A name can't be an object and a folder
at the same time, as it can on S3. The etag is a hash of the content up to 4 MiB, and of size, time and inode above.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.core.errors import (
    BucketNotFound,
    InvalidConfig,
    RayTrainError,
    StorePermissionDenied,
    StoreUnreachable,
    WriteConflict,
)
from airflow_provider.storage.object_store import FolderListing, ObjectInfo, StoredObject, check_key, check_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN = ".objectstore"
_HASHED_BYTES = 4 * 1024 * 1024
_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class LocalObjectStore:
    """An ObjectStore in a folder."""

    def __init__(self, uri: str, *, anchor: str | None = None) -> None:
        """Take `file:///folder` or an absolute path; nothing is created. Raises InvalidConfig for anything else.

        `anchor` must exist whenever the store is used (default: the root): an unmounted share is then BucketNotFound.
        """
        self._root = _folder(uri)
        self._anchor = _folder(anchor) if anchor else self._root

    @property
    def uri(self) -> str:
        """The root, without a trailing slash."""
        return f"file://{self._root}"

    def __repr__(self) -> str:
        """Name the root."""
        return f"LocalObjectStore({self.uri!r})"

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, key: str) -> StoredObject | None:
        """See ObjectStore."""
        path = self._path(key)
        with self._errors("read", path):
            try:
                with path.open("rb") as file:
                    found, body = os.fstat(file.fileno()), file.read()
            except _NOT_THERE:
                return None
            return StoredObject(
                key=key,
                body=body,
                etag=_content_etag(body) if len(body) <= _HASHED_BYTES else _stat_etag(found),
                modified_at=_time(found.st_mtime),
                read_at=self._clock(),
            )

    def head(self, key: str) -> ObjectInfo | None:
        """See ObjectStore."""
        path = self._path(key)
        with self._errors("read", path):
            return _info(key, path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore. Sorted by the keys' bytes, as AWS does."""
        check_prefix(prefix)
        with self._errors("list", self._root):
            keys = sorted(self._walk(prefix), key=str.encode)
        for key in keys:
            # Not by `_path`: what others stored may have a name that we would refuse to write.
            path = self._root / key
            with self._errors("list", path):
                info = _info(key, path)
            if info is not None:  # deleted since
                yield info

    def list_folder(self, prefix: str, *, start_after: str = "") -> FolderListing:
        """See ObjectStore."""
        check_prefix(prefix)
        above, name_start = _split(prefix)
        after = (prefix + start_after).encode() if start_after else b""
        objects: list[ObjectInfo] = []
        folders: list[str] = []
        with self._errors("list", self._root / above):
            for entry in self._entries(above):
                key = above + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
                if not entry.name.startswith(name_start) or key.encode() <= after:
                    continue
                if key.endswith("/"):
                    folders.append(key)
                elif info := _info(key, Path(entry.path)):
                    objects.append(info)
        objects.sort(key=lambda info: info.key.encode())
        return FolderListing(objects=tuple(objects), folders=tuple(sorted(folders)))

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """See ObjectStore."""
        return self.list_folder(prefix).folders

    # --- writing -------------------------------------------------------------------------------------------------

    def write(self, key: str, body: bytes) -> str:
        """See ObjectStore."""
        path = self._path(key)
        with self._errors("write", path), self._locked(key), self._temporary(body) as temporary:
            return self._rename(temporary, path)

    def create_if_absent(self, key: str, body: bytes) -> bool:
        """See ObjectStore. A hard link appears with its whole content or not at all."""
        path = self._path(key)
        with self._errors("write", path), self._temporary(body) as temporary:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(temporary, path)
            except FileExistsError:
                # NFS repeats a request whose reply was lost: the second one fails although the first one linked.
                return temporary.stat().st_ino == path.stat().st_ino
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise _no_links(self._root) from error
                raise
            _sync_folder(path.parent)
            return True

    def replace_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """See ObjectStore."""
        path = self._path(key)
        with self._errors("write", path), self._locked(key):
            info = _info(key, path)
            if info is None or info.etag != etag:
                known = f"it has the etag {info.etag}, not {etag}" if info else "it is gone"
                raise WriteConflict(f"Another process has written {self.uri}/{key}", known=known, etag=etag)
            with self._temporary(body) as temporary:
                return self._rename(temporary, path)

    def copy(self, source: str, target: str) -> bool:
        """See ObjectStore."""
        source_path, path = self._path(source), self._path(target)
        with self._errors("write", path), self._locked(target), self._temporary(b"") as temporary:
            try:
                shutil.copyfile(source_path, temporary)
            except _NOT_THERE:
                return False
            _sync_file(temporary)
            self._rename(temporary, path)
            return True

    def delete(self, key: str) -> None:
        """See ObjectStore. Folders that become empty stay."""
        path = self._path(key)
        with self._errors("delete", path), self._locked(key), contextlib.suppress(*_NOT_THERE):
            path.unlink()
            _sync_folder(path.parent)

    # --- inside --------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        check_key(key)
        path = self._root / key
        real_root = os.path.realpath(self._root)
        inside = os.path.commonpath([real_root, os.path.realpath(path)]) == real_root
        if not inside or key.split("/", 1)[0] == _OWN:
            raise InvalidConfig(
                f"The object key {key!r} can't be used",
                known=f"it leads outside {self._root} or into its {_OWN} folder",
                change="remove the symbolic link, or choose another name",
                key=key,
            )
        return path

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._root / folder) as entries:
                yield from (entry for entry in entries if folder or entry.name != _OWN)
        except (FileNotFoundError, NotADirectoryError):
            return

    def _walk(self, prefix: str) -> Iterator[str]:
        pending = [_split(prefix)[0]]
        while pending:
            folder = pending.pop()
            for entry in self._entries(folder):
                key = folder + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                        pending.append(f"{key}/")
                elif key.startswith(prefix):
                    yield key

    def _rename(self, temporary: Path, path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(path)
        _sync_folder(path.parent)
        info = _info("", path)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, "gone right after the rename", str(path))
        return info.etag

    @contextlib.contextmanager
    def _temporary(self, body: bytes) -> Iterator[Path]:
        folder = self._root / _OWN
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.tmp"
        try:
            with path.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Exclude other writers of `key`. The lock file is never removed: removing one lets two holders in."""
        folder = self._root / _OWN
        folder.mkdir(parents=True, exist_ok=True)
        # A few lock files for all keys, so that they don't pile up over a long experiment.
        name = f"{hashlib.sha256(key.encode()).hexdigest()[:2]}.lock"
        with (folder / name).open("ab") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            yield

    def _clock(self) -> datetime:
        """The file system's clock: on NFS it is the server's, which also stamps the files."""
        probe = self._root / _OWN / f"{uuid.uuid4().hex}.now"
        try:
            # Only where this class has written before: reading another's experiment must not leave a trace.
            probe.touch(exist_ok=False)
            now = probe.stat().st_mtime
            probe.unlink()
        except OSError:
            return datetime.now(timezone.utc)
        return _time(now)

    @contextlib.contextmanager
    def _errors(self, action: str, path: Path) -> Iterator[None]:
        if not self._anchor.is_dir():
            raise BucketNotFound(
                f"The folder {self._anchor} does not exist",
                known="a share that isn't mounted looks like this too, so it is not taken for an empty store",
                change="mount or create it on this worker, or correct storage_path",
            )
        try:
            yield
        except RayTrainError:
            raise
        except OSError as error:
            raise _translate(error, action=action, path=path) from error


def _folder(uri: str) -> Path:
    text = uri.removeprefix("file://")
    # Others decode %20 in a file URI and not in a path; refusing it keeps both sides on one folder.
    strange = uri != text and any(character in text for character in "%?#")
    if not text.startswith("/") or strange or "\0" in text or ".." in text.split("/"):
        raise InvalidConfig(
            "The storage path can't be used",
            known="it is neither s3://bucket/prefix nor an absolute path (a file:// URI must not hold '%', '?' or '#')",
            change="write s3://bucket/prefix, file:///folder or /folder",
        )
    return Path(text)


def _split(prefix: str) -> tuple[str, str]:
    above, slash, name_start = prefix.rpartition("/")
    return above + slash, name_start


def _info(key: str, path: Path) -> ObjectInfo | None:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return None
        etag = _content_etag(path.read_bytes()) if found.st_size <= _HASHED_BYTES else _stat_etag(found)
    except _NOT_THERE:
        return None
    return ObjectInfo(key=key, size=found.st_size, etag=etag, modified_at=_time(found.st_mtime))


def _content_etag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _stat_etag(found: os.stat_result) -> str:
    return f"{found.st_size:x}-{found.st_mtime_ns:x}-{found.st_ino:x}"


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    # A rename or link survives a power cut only once its folder is on disk.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _no_links(root: Path) -> InvalidConfig:
    return InvalidConfig(
        f"{root} can't hold an experiment",
        known="its file system has no hard links, without which two processes could both create one record",
        change="use S3, a local disk or NFS",
    )


def _translate(error: OSError, *, action: str, path: Path) -> RayTrainError:
    known = f"{action} of {path} ended with {error.strerror or type(error).__name__}"
    if isinstance(error, PermissionError):
        return StorePermissionDenied(
            f"The file system refused to {action} {path}",
            known=known,
            change="give the worker's user access",
            action=action,
        )
    if error.errno == errno.EROFS:
        return StorePermissionDenied(f"{path} is read-only", known=known, change="mount it writable", action=action)
    if isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError):
        return InvalidConfig(f"{path} can't be written", known=f"{known}: a file and a folder share a name")
    if error.errno == errno.ENAMETOOLONG:
        return InvalidConfig(f"{path} can't be written", known=known, change="choose a shorter name")
    return StoreUnreachable(f"The file system failed to {action} {path}", known=known, cause=type(error).__name__)

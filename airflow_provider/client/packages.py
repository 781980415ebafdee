"""Zips for the cluster: the same content gives the same bytes and the same name, on every machine and at any time."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pathspec

from airflow_provider.client.values import Package
from airflow_provider.core.errors import FileChanged, InvalidConfig
from airflow_provider.core.strict_json import storable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_PACKAGE_BYTES = 100 * 1024 * 1024
"""Ray's limit for the body of an upload."""
MAX_FILES = 50_000
"""More is data, not code; each costs every start of the job."""
_MAX_RATIO = 10
"""A tree over this many times the limit isn't read to find out how well it compresses."""
_MAX_IGNORE_BYTES = 1024 * 1024

ALWAYS_LEFT_OUT = (
    ".git", ".hg", ".svn", ".venv", "__pycache__", "*.pyc", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".DS_Store",
    ".env", ".env*", "*.pem", "*.key", "*.p12", "*.pfx", "*.keystore", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    ".ssh", ".aws", ".azure", ".gcloud", ".kube", ".docker", ".gnupg", ".netrc", ".pypirc", ".pgpass", ".git-credentials",
    "credentials", "credentials.json", "credentials.ini", "credentials.yaml", "credentials.yml", "credentials.csv",
    "*.env", "*_credentials", "*_credentials.json", ".npmrc", ".vault-token", "*.ppk", "*.tfstate", "kubeconfig",
    ".htpasswd", ".dockercfg",
    "service-account*.json", "service_account*.json", "secrets.json", "secrets.yaml", "secrets.yml",
)  # fmt: skip
"""Names that never travel, whatever the ignore files say: keys, credentials and bulk that no job needs."""

_IGNORE_FILES = (".gitignore", ".rayignore")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_EXECUTABLE, _PLAIN = 0o755, 0o644
_MODULE_NAME = re.compile(r"^[A-Za-z0-9_.@+ -]+(/[A-Za-z0-9_.@+ -]+)*$")
_NUM_NAMED = 5
_UNIX = 3


@dataclass(frozen=True)
class _Entry:
    name: str
    mode: int
    source: Path | bytes
    size: int
    changed_ns: int = 0

    def read(self) -> bytes:
        if isinstance(self.source, bytes):
            return self.source
        data, seen = _read_file(self.source, limit=self.size + 1)
        if (seen.st_mtime_ns, seen.st_size, len(data)) != (self.changed_ns, self.size, self.size):
            raise _changed(self.source, "its size or its time is another one")
        return data


def _read_file(path: Path, *, limit: int) -> tuple[bytes, os.stat_result]:
    """At most `limit` bytes of a regular file, and what it is after that. Never waits for a writer of a FIFO."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _changed(path, "it is no regular file any more")
            return file.read(limit), os.fstat(file.fileno())
    except FileNotFoundError:
        raise _changed(path, "it is gone") from None
    except OSError as error:
        raise InvalidConfig(
            f"file {path} can't be read for the package",
            known=error.strerror or type(error).__name__,
            change="correct its permissions or leave it out with .rayignore",
        ) from error


def _changed(path: Path, known: str) -> FileChanged:
    return FileChanged(
        f"file {path} changed while the package was made",
        known=known,
        change="nothing if it was a deployment: the next try packs again; else leave it out with .rayignore",
    )


def is_directory(path: Path) -> bool:
    """Whether the path is a directory; False also for one that no file system takes."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def package_directory(
    path: str | os.PathLike[str], *, excludes: Sequence[str] = (), max_bytes: int = MAX_PACKAGE_BYTES
) -> Package:
    """Zip a directory as a `working_dir`, its files at the root.

    Honours `.gitignore` and `.rayignore` at every level, and `excludes` in the same syntax. Links are followed inside the
    tree only. Empty directories don't travel.

    Raises:
        InvalidConfig: no such directory, nothing in it, an unreadable file, too many files, or a zip over `max_bytes`.
        FileChanged: a file was written or went away meanwhile; trying again can help.

    """
    root = Path(path)
    if not is_directory(root):
        raise InvalidConfig(f"directory {str(path)[:300]!r} does not exist", change="correct working_dir")
    try:
        root = root.resolve()
        walk = _Walk(root, excludes)
        entries = sorted(walk.entries(), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _changed(root, f"something in it went away ({error.strerror})") from error
    except (OSError, RuntimeError, re.error) as error:  # links in a circle or without permission, a bad ignore pattern
        raise InvalidConfig(
            f"directory {root} can't be packed",
            known=f"{type(error).__name__}: {error}",
            change="correct what is named",
        ) from error
    if any(entry.name.startswith("airflow_provider/") for entry in entries):
        raise InvalidConfig(
            f"directory {root} holds a folder airflow_provider", change="rename it: it would hide the runtime's own"
        )
    if not entries:
        raise InvalidConfig(
            f"directory {root} holds no file to send", change="check .gitignore, .rayignore and excludes"
        )
    return _package(entries, max_bytes=max_bytes, left_out=tuple(sorted(walk.left_out)))


def package_files(files: Mapping[str, bytes], *, max_bytes: int = MAX_PACKAGE_BYTES) -> Package:
    """Zip files held in memory; for `py_modules` the names must begin with the module's own folder.

    Raises:
        InvalidConfig: no file, a name that leads out of the zip, or a zip over `max_bytes`.

    """
    for name in files:
        if not _MODULE_NAME.match(name) or any(part in {".", ".."} for part in name.split("/")):
            raise InvalidConfig(
                f"{name!r} can't be a file in a package", change="use relative names with forward slashes"
            )
    if not files:
        raise InvalidConfig("the package holds no file", change="give at least one")
    entries = [_Entry(name, _PLAIN, files[name], len(files[name])) for name in sorted(files)]
    return _package(entries, max_bytes=max_bytes, left_out=())


class _Walk:
    """One pass over a directory; remembers the links it didn't follow."""

    def __init__(self, root: Path, excludes: Sequence[str]) -> None:
        self._root = root
        self._excludes = pathspec.GitIgnoreSpec.from_lines(excludes)
        self.left_out: list[str] = []

    def entries(self) -> Iterator[_Entry]:
        found = self._directory(self._root, PurePosixPath(), specs=[("", self._excludes)], above=(self._root,))
        for number, entry in enumerate(found, start=1):
            if number > MAX_FILES:
                raise InvalidConfig(
                    f"directory {self._root} holds more than {MAX_FILES:,} files to send",
                    known=f"one of them is {storable(entry.name)[:300]}",
                    change="leave data out with .rayignore, .gitignore or excludes, and read it from storage instead",
                )
            yield entry

    def _directory(
        self,
        path: Path,
        relative: PurePosixPath,
        *,
        specs: list[tuple[str, pathspec.GitIgnoreSpec]],
        above: tuple[Path, ...],
    ) -> Iterator[_Entry]:
        base = "" if relative == PurePosixPath() else f"{relative}/"
        # `excludes` stays last: what the author says in the DAG wins over files in the tree.
        specs = [*specs[:-1], *((base, spec) for spec in _ignore_specs(path)), specs[-1]]
        for child in sorted(_children(path), key=lambda found: found.name):
            name = relative / child.name
            if _is_always_left_out(child.name):
                continue
            target = self._target(child, name, above=above)
            if target is None:
                continue
            if target.is_dir():
                is_environment = (target / "pyvenv.cfg").exists()
                if not is_environment and not _is_ignored(f"{name}/", specs):
                    yield from self._directory(target, name, specs=specs, above=(*above, target))
            elif target.is_file() and not _is_ignored(str(name), specs):
                yield _entry(str(name), target)

    def _target(self, child: Path, name: PurePosixPath, *, above: tuple[Path, ...]) -> Path | None:
        if not child.is_symlink():
            return child
        target = child.resolve()
        is_inside = target.is_relative_to(self._root) and target.exists()
        # A link must not smuggle in what its target's own name keeps out, nor lead back to a directory above it.
        if not is_inside or target in above or any(map(_is_always_left_out, target.relative_to(self._root).parts)):
            self.left_out.append(str(name))
            return None
        return target


def _entry(name: str, path: Path) -> _Entry:
    if name != storable(name):
        raise InvalidConfig(
            f"the name of file {storable(name)[:300]} is not UTF-8",
            known="neither the package nor Python on the cluster could say it",
            change="rename it or leave it out with .rayignore",
        )
    seen = path.stat()
    mode = _EXECUTABLE if seen.st_mode & stat.S_IXUSR else _PLAIN
    return _Entry(name, mode, path, seen.st_size, seen.st_mtime_ns)


def _children(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InvalidConfig(
            f"directory {path} can't be read for the package",
            known=error.strerror or str(error),
            change="correct its permissions or leave it out with .rayignore",
        ) from error


def _ignore_specs(path: Path) -> Iterator[pathspec.GitIgnoreSpec]:
    for name in _IGNORE_FILES:
        file = path / name
        if file.is_file():
            data, _ = _read_file(file, limit=_MAX_IGNORE_BYTES + 1)
            if len(data) > _MAX_IGNORE_BYTES:
                raise InvalidConfig(f"{file} has more than {_MAX_IGNORE_BYTES:,} bytes", change="shorten it")
            yield pathspec.GitIgnoreSpec.from_lines(data.decode("utf-8", errors="replace").splitlines())


def _is_ignored(name: str, specs: Sequence[tuple[str, pathspec.GitIgnoreSpec]]) -> bool:
    verdict = False
    for base, spec in specs:
        found = spec.check_file(name.removeprefix(base)).include
        if found is not None:
            verdict = found
    return verdict


def _is_always_left_out(name: str) -> bool:
    lowered = name.lower()
    return any(fnmatch(lowered, pattern.lower()) for pattern in ALWAYS_LEFT_OUT)


def _package(entries: Sequence[_Entry], *, max_bytes: int, left_out: tuple[str, ...]) -> Package:
    if sum(entry.size for entry in entries) > max_bytes * _MAX_RATIO:
        raise _too_large(entries, max_bytes=max_bytes)
    buffer = io.BytesIO()
    digest = hashlib.sha256(b"package 1\n")
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for entry in entries:
            data = entry.read()
            # Over the content and not over the zip: another zlib may compress differently.
            digest.update(f"{entry.name}\0{entry.mode:o}\0{len(data)}\0".encode())
            digest.update(data)
            archive.writestr(_zip_info(entry), data)
            if buffer.tell() > max_bytes:
                raise _too_large(entries, max_bytes=max_bytes)
    if buffer.tell() > max_bytes:
        raise _too_large(entries, max_bytes=max_bytes)
    uri = f"gcs://_ray_pkg_{digest.hexdigest()[:32]}.zip"
    return Package(uri=uri, content=buffer.getvalue(), num_files=len(entries), left_out=left_out)


def _zip_info(entry: _Entry) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(entry.name, date_time=_EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = _UNIX
    info.external_attr = (stat.S_IFREG | entry.mode) << 16
    return info


def _too_large(entries: Sequence[_Entry], *, max_bytes: int) -> InvalidConfig:
    biggest = sorted(entries, key=lambda entry: (-entry.size, entry.name))[:_NUM_NAMED]
    named = ", ".join(f"{entry.name[-300:]} ({entry.size:,} bytes)" for entry in biggest)
    total = sum(entry.size for entry in entries)
    return InvalidConfig(
        f"the package is over the limit of {max_bytes:,} bytes; nothing was sent",
        known=f"{len(entries):,} files with {total:,} bytes before compression; the largest: {named}",
        change="leave data out with .rayignore, .gitignore or excludes, and read it from storage instead",
        size=total,
        limit=max_bytes,
    )

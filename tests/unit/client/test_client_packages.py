"""The same tree gives the same package; secrets and bulk stay at home (C31)."""

from __future__ import annotations

import io
import os
import time
import zipfile
from pathlib import Path

import pytest

from airflow_provider.client import package_directory, package_files
from airflow_provider.core.errors import InvalidConfig


def names(content: bytes) -> list[str]:
    """What a zip holds."""
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


def write(root: Path, files: dict[str, str]) -> Path:
    """Make a tree."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_same_tree_same_bytes(tmp_path: Path) -> None:
    """Order of creation, times and place don't matter: Ray runs old code under a used name."""
    one = write(tmp_path / "one", {"a.py": "1", "pkg/b.py": "2"})
    two = write(tmp_path / "two", {"pkg/b.py": "2", "a.py": "1"})
    os.utime(two / "a.py", (time.time() - 10_000_000,) * 2)
    (two / "a.py").chmod(0o600)
    first, second = package_directory(one), package_directory(two)
    assert (first.uri, first.content) == (second.uri, second.content)
    assert first.uri.startswith("gcs://_ray_pkg_")
    assert names(first.content) == ["a.py", "pkg/b.py"]
    (two / "a.py").write_text("3")
    assert package_directory(two).uri != first.uri
    (one / "a.py").chmod(0o755)
    assert package_directory(one).uri != first.uri


def test_secrets_and_bulk_never_travel(tmp_path: Path) -> None:
    """Even where an ignore file asks for them."""
    kept = {"train.py": "", "credentials.py": "", "environment.yml": "", "keys/readme.md": ""}
    out = {
        ".git/config": "", ".venv/x": "", "__pycache__/a.pyc": "", ".env": "", ".env.prod": "", "tls/server.pem": "",
        "a.KEY": "", "id_rsa": "", "id_ed25519.pub": "", ".aws/credentials": "", "credentials.json": "", "env/pyvenv.cfg": "",
        "env/lib/x.py": "", ".netrc": "",
    }  # fmt: skip
    root = write(tmp_path / "w", kept | out | {".gitignore": "!.env\n!*.pem\n"})
    assert names(package_directory(root).content) == sorted([*kept, ".gitignore"])


def test_ignore_files_at_every_level(tmp_path: Path) -> None:
    """As git reads them: deeper and later lines win; `excludes` of the DAG author wins over all."""
    root = write(
        tmp_path / "w",
        {
            ".gitignore": "*.log\n/data/\nbuild\n",
            ".rayignore": "!keep.log\n",
            "a.log": "",
            "keep.log": "",
            "data/x": "",
            "sub/data/x": "",
            "sub/build/x": "",
            "sub/.gitignore": "only.txt\n!c.log\n",
            "sub/only.txt": "",
            "sub/c.log": "",
            "only.txt": "",
            "big.bin": "",
        },
    )
    found = [name for name in names(package_directory(root, excludes=["*.bin"]).content) if not name.endswith("ignore")]
    assert found == ["keep.log", "only.txt", "sub/c.log", "sub/data/x"]


def test_links_stay_inside_the_tree(tmp_path: Path) -> None:
    """Followed inside; left out and said so where they lead outside, to a secret, or round in a circle."""
    outside = write(tmp_path / "outside", {"secret.txt": "x"})
    root = write(tmp_path / "w", {"lib/a.py": "", ".env": "TOKEN=1"})
    for name, target in {
        "alias": root / "lib", "out": outside, "file": outside / "secret.txt", "conf": root / ".env", "gone": root / "no",
        "lib/up": root,
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    package = package_directory(root)
    assert names(package.content) == ["alias/a.py", "lib/a.py"]
    assert package.left_out == ("alias/up", "conf", "file", "gone", "lib/up", "out")


def test_size_limit_names_the_largest(tmp_path: Path) -> None:
    """Found before any request, with what to leave out."""
    root = write(tmp_path / "w", {"small.py": "x"})
    (root / "model.bin").write_bytes(os.urandom(5000))
    with pytest.raises(InvalidConfig, match=r"model\.bin \(5,000 bytes\).*small.*excludes"):
        package_directory(root, max_bytes=2000)


def test_nothing_to_send_is_refused(tmp_path: Path) -> None:
    """A job without its code would fail later and less clearly."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidConfig):
            package_directory(path)


def test_files_in_memory() -> None:
    """For `py_modules` the top folder stays; names can't lead out."""
    package = package_files({"rt/b.py": b"2", "rt/__init__.py": b""})
    assert names(package.content) == ["rt/__init__.py", "rt/b.py"]
    assert package == package_files({"rt/__init__.py": b"", "rt/b.py": b"2"})
    for name in ("/abs", "../up", "a//b", "a\\b", ""):
        with pytest.raises(InvalidConfig):
            package_files({name: b""})

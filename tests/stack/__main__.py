"""`python -m tests.stack`: keep the services up until Ctrl-C, to try a Dag of your own."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tests.stack.process import StackError, program
from tests.stack.services import ALL_PARTS, Stack

if TYPE_CHECKING:
    from types import FrameType

_EXAMPLES = Path(__file__).resolve().parents[2] / "dags"


def main() -> int:
    """Start, say where everything is, wait."""
    options = _parse()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGINT too: a shell's background command ignores it
        signal.signal(number, _interrupt)
    for folder in options.dags or ():
        if not folder.is_dir():
            say(f"error: {folder} is not a directory (looked for {folder.resolve()})")
            return 1
    folders = options.dags or ([_EXAMPLES] if _EXAMPLES.is_dir() else [])
    begun = time.monotonic()
    say(f"Starting {', '.join(options.parts)} (about half a minute) ...")
    try:
        with Stack(options.state_dir, parts=options.parts, dags=folders) as stack:
            say(describe(stack, folders, seconds=time.monotonic() - begun))
            wait_and_watch(stack)
    except KeyboardInterrupt:
        say("Stopped; nothing is left running.")
        return 0
    except StackError as error:
        say(f"error: {error}")
        return 1


def describe(stack: Stack, folders: list[Path], *, seconds: float) -> str:
    """Addresses, logins, and what to do next."""
    lines = [f"Up after {seconds:.0f} s. Ctrl-C stops everything.", ""]
    parts = {service.name for service in stack.services()}
    if "airflow" in parts:
        airflow = stack.airflow
        lines.append(f"  Airflow   {airflow.url}   user {airflow.username}   password {airflow.password}")
    if "ray" in parts:
        lines.append(f"  Ray       {stack.ray.address}   token {stack.ray.token}")
    if "s3" in parts:
        s3 = stack.s3
        lines.append(f"  S3        {s3.endpoint_url}   buckets {', '.join(s3.buckets)}")
        lines.append(f"            AWS_ACCESS_KEY_ID={s3.access_key} AWS_SECRET_ACCESS_KEY={s3.secret_key}")
    lines.append(f"  Logs      {stack.state_dir}")
    if "airflow" in parts:
        shown = ", ".join(str(folder.resolve()) for folder in folders) or "none"
        lines += [
            "",
            f"  Dag folders: {shown}. Save a file there, and it is in the UI some 10 s later, paused.",
            "  Another folder: make stack DAGS=DIR",
            f"  Connections for your Dags: {', '.join(stack.airflow_connections())} (from the environment: the UI lists none)",
            "  Airflow's commands, in another terminal:",
            f"    . {write_settings(stack)} && {program('airflow')} ray-train experiments s3://{stack.s3.buckets[0]}"
            if "s3" in parts
            else f"    . {write_settings(stack)} && {program('airflow')} dags list",
        ]
    return "\n".join(lines)


def write_settings(stack: Stack) -> Path:
    """A file for a shell: with it, `airflow` on this machine talks to this Airflow. It holds the stack's made-up secrets."""
    found = {name: value for name, value in stack.airflow.env().items() if name.startswith("AIRFLOW")}
    path = stack.state_dir / "airflow.env"
    path.touch(mode=0o600)
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in found.items()))
    return path


def wait_and_watch(stack: Stack) -> NoReturn:
    """Wait for Ctrl-C; a service that ends by itself is an error, said with its log."""
    never = threading.Event()
    while not never.wait(1.0):
        for service in stack.services():
            if not service.is_alive():
                message = f"{service.name} ended; see {stack.state_dir}"
                raise StackError(message)
    raise AssertionError


def say(text: str) -> None:
    """Print to the terminal at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.stack", description=__doc__)
    parser.add_argument(
        "--dags", type=Path, action="append", metavar="DIR", help="a Dag folder; again for more (default: dags/)"
    )
    parser.add_argument(
        "--parts", type=lambda text: tuple(text.split(",")), default=ALL_PARTS, help="default: s3,ray,airflow"
    )
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="where logs and data go and stay (default: temporary)"
    )
    return parser.parse_args()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

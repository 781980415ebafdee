"""A real S3 server: SeaweedFS from its wheel. Its conditional writes are atomic, which our claims need (moto's are not)."""

from __future__ import annotations

import contextlib
import json
import secrets
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.stack.process import LOOPBACK, HeldProcess, Service, clean_env, free_port, program, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_s3 import S3Client

_PROBE = ".stack-probe"
_PORTED = ("master", "volume", "filer", "s3", "admin")


class S3Server(Service):
    """SeaweedFS on loopback. `kill` and `start` keep data, address and keys.

    Known limitation: a GET straight after a restart may fail until its parts have found one another; `start` waits for a write.
    """

    name = "s3"
    region = "us-east-1"

    def __init__(self, state_dir: Path, *, buckets: Sequence[str] = ("models",)) -> None:
        """Choose ports and make up keys; `buckets` are created at start."""
        super().__init__(state_dir)
        self.buckets = tuple(buckets)
        self.access_key = f"AK{secrets.token_hex(8).upper()}"
        self.secret_key = secrets.token_urlsafe(24)
        self._ports = {part: (free_port(), free_port()) for part in _PORTED}
        self.port = self._ports["s3"][0]
        self.endpoint_url = f"http://{LOOPBACK}:{self.port}"
        self.shown_url = self.endpoint_url
        """What jobs and Airflow are told: a gate's address where one stands before the server."""

    def start(self) -> None:
        """Start, and create the buckets that are missing."""
        data = self.state_dir / "s3-data"
        data.mkdir(parents=True, exist_ok=True)
        self.process = HeldProcess(
            self._command(data),
            log=self.log,
            env=clean_env(self.state_dir / "s3-home", {"TMPDIR": str(self.state_dir)}),
            cwd=self.state_dir,
        )
        wait_until(self._answers, timeout_s=60, what="S3 server", process=self.process)
        client = self.client()
        for bucket in self.buckets:
            self.create_bucket(bucket, client=client)

    def stop(self) -> None:
        """Stop it, and remove the sockets that SeaweedFS leaves behind in /tmp, by names that can't be chosen."""
        super().stop()
        self._remove_sockets()

    def kill(self) -> None:
        """SIGKILL it."""
        super().kill()
        self._remove_sockets()

    def _remove_sockets(self) -> None:
        for part, (_, grpc) in self._ports.items():
            Path(f"/tmp/seaweedfs-{part}-grpc-{grpc}.sock").unlink(missing_ok=True)  # noqa: S108 see `stop`

    def client(self, *, timeout_s: float = 10.0, max_attempts: int = 3) -> S3Client:
        """A boto3 client for this server."""
        config = Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            retries={"max_attempts": max_attempts, "mode": "standard"},
            s3={"addressing_style": "path"},
            proxies={},
        )
        # A session of its own: boto3's default one is shared and not safe across threads.
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=config,
        )

    def create_bucket(self, bucket: str, *, client: S3Client | None = None) -> str:
        """Create the bucket if it is missing, and wait until it takes a write; the answer is its name."""
        client = client or self.client()

        def takes_writes() -> bool:
            try:
                with contextlib.suppress(
                    client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists
                ):
                    client.create_bucket(Bucket=bucket)
                client.put_object(Bucket=bucket, Key=_PROBE, Body=b"")
                client.delete_object(Bucket=bucket, Key=_PROBE)
            except (ClientError, BotoCoreError):
                return False
            return True

        wait_until(takes_writes, timeout_s=30, what=f"bucket {bucket}", process=self.process)
        return bucket

    def env(self) -> dict[str, str]:
        """Environment with which boto3 and pyarrow reach this server."""
        return {
            "AWS_ENDPOINT_URL": self.shown_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def airflow_connection(self) -> str:
        """This server as the JSON of an Airflow connection of type `aws`."""
        # botocore takes path style by itself for an address of digits; a config_kwargs here would be masked as a secret.
        extra: dict[str, Any] = {"endpoint_url": self.shown_url, "region_name": self.region}
        return json.dumps({"conn_type": "aws", "login": self.access_key, "password": self.secret_key, "extra": extra})

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint_url}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _command(self, data: Path) -> list[str]:
        config = self.state_dir / "s3-identities.json"
        keys = {"accessKey": self.access_key, "secretKey": self.secret_key}
        identity = {"name": "stack", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        config.write_text(json.dumps({"identities": [identity]}))
        config.chmod(0o600)
        ports = [
            flag
            for part, (http, grpc) in self._ports.items()
            for flag in (f"-{part}.port={http}", f"-{part}.port.grpc={grpc}")
        ]
        return [
            program("weed"),
            f"-logdir={self.state_dir}",
            "-logtostderr=true",
            "mini",
            f"-dir={data}",
            f"-ip={LOOPBACK}",
            f"-ip.bind={LOOPBACK}",
            *ports,
            f"-s3.config={config}",
            f"-s3.localSocket={self.state_dir / 's3.sock'}",
            f"-filer.localSocket={self.state_dir / 'filer.sock'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",  # a wrong bucket must fail as it does on AWS
            "-master.telemetry=false",
            "-webdav=false",
            "-admin.ui=false",
        ]

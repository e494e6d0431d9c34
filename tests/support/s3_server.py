"""An object store for tests: moto's S3 server, as a process of its own (`s3_process`)."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from tests.support.patience import PATIENCE_S

REGION = "eu-central-1"
VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION")
ROOT = Path(__file__).resolve().parents[2]


class S3Server:
    """A running server, reachable on this machine only."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"

    @property
    def environ(self) -> dict[str, str]:
        """Variables by which every client finds it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def properties(self) -> dict[str, str]:
        """Properties with which clients of Iceberg find it."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": "test",
            "s3.secret-access-key": "test",
        }

    @property
    def client(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key="test",
            secret_key="test",
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region=REGION,
            allow_bucket_creation=True,
        )

    def create_bucket(self, name: str) -> None:
        self.client.create_dir(name)

    def stored(self, folder: str) -> set[str]:
        """Return the files below a folder, relative to it."""
        found = self.client.get_file_info(fs.FileSelector(folder, recursive=True))
        return {info.path.removeprefix(f"{folder}/") for info in found if info.is_file}

    def answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/moto-api/")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def s3_server(environ: Mapping[str, str] | None = None) -> Iterator[S3Server]:
    """Run a server until the block ends; `environ` adds to its environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.s3_process"]
    process = subprocess.Popen(
        [*command, "-H", "127.0.0.1", "-p", str(port)],
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        server = S3Server(port)
        deadline_s = time.monotonic() + PATIENCE_S
        while not server.answers():
            assert process.poll() is None, f"moto ended with {process.returncode}"
            assert time.monotonic() < deadline_s, "moto did not start in time"
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait(30)

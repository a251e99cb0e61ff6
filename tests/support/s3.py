"""An S3 bucket in a process of its own, for tests of whatever writes to an object store."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.support.ports import free_port
from tests.support.waiting import until


@contextmanager
def s3_bucket(bucket: str) -> Iterator[Mapping[str, str]]:
    """Yield the variables of the environment that lead AWS's libraries to the bucket."""
    pytest.importorskip("moto.server")
    port = free_port()

    def make_bucket() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", f"/{bucket}")
        status = connection.getresponse().status
        connection.close()
        return status == 200

    # a process of its own: Delta's native library keeps the interpreter's lock while it waits for the store
    server = subprocess.Popen(
        [sys.executable, "-c", "import sys; from moto.server import main; main(sys.argv[1:])", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(make_bucket, passing=(OSError,))
        yield {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        server.kill()
        server.wait()

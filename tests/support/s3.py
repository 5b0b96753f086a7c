"""An S3 server for tests: moto, which keeps objects in the memory of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from cdc.testing.servers import free_port

HOST = "127.0.0.1"


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """Runs a server with one bucket and yields the bucket's URI. ``s3://`` leads there for this process and its children,
    by Amazon's environment variables. The fake has no access rights, no throttling and no slow answers."""
    import s3fs
    from moto.server import ThreadedMotoServer

    port = free_port()
    server = ThreadedMotoServer(ip_address=HOST, port=port, verbose=False)
    settings = {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",  # for deltalake
    }
    server.start()
    try:
        with patch.dict(os.environ, settings):
            s3fs.S3FileSystem.clear_instance_cache()
            s3fs.S3FileSystem().mkdir(bucket)
            yield f"s3://{bucket}"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()

"""
A DynamoDB, a Glue and an S3 to test against: moto behind a mutex.

moto checks a condition and then writes without a lock between the two, so that of six racers
two sometimes win. Therefore every request that changes something passes one
mutex here. With it the conditional writes are as atomic as the real services'.

``python tests/servers/moto_app.py PORT [SWITCH]`` serves until it is killed. Everything is
kept in memory: a restarted server has forgotten all tables and buckets. While a file SWITCH
exists, every request is throttled as by the real services.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"

TOO_MANY_ROWS = (
    "com.amazon.coral.availability#ThrottlingException",
    "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
)
TOO_MANY_OBJECTS = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code><Message>Please reduce '
    b"your request rate.</Message><RequestId>0</RequestId><HostId>0</HostId></Error>"
)


def throttled(app: Callable[..., Iterable[bytes]], switch: Path) -> Callable[..., Iterable[bytes]]:
    """The application, which refuses every request while that file exists."""
    numbers = itertools.count()

    def throttling(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            # One open, which also counts; it never creates the file.
            file = os.open(switch, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            return app(environ, start_response)
        os.write(file, b".")
        os.close(file)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if "DynamoDB" in environ.get("HTTP_X_AMZ_TARGET", ""):
            kind = TOO_MANY_ROWS[next(numbers) % len(TOO_MANY_ROWS)]
            body = json.dumps({"__type": kind, "message": "Rate exceeded"}).encode("ascii")
            status, media = "400 Bad Request", "application/x-amz-json-1.0"
        else:
            body, status, media = TOO_MANY_OBJECTS, "503 Slow Down", "application/xml"
        start_response(status, [("Content-Type", media), ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return throttling


def one_at_a_time(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """The application with a mutex around every request that may change something."""
    mutex = threading.Lock()

    def locked(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
            return app(environ, start_response)
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length:
            # Read before the mutex, or a slow sender would keep all others waiting.
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with mutex:
            return list(app(environ, start_response))

    return locked


def check_versions_of_glue() -> None:
    """Let Glue reject an update of an older version of a table, as AWS does and moto does not."""
    from moto.core.exceptions import JsonRESTError
    from moto.glue.responses import GlueResponse

    update = GlueResponse.update_table

    def checked(self: Any) -> Any:
        named = self.parameters.get("VersionId")
        table = self.glue_backend.get_table(
            self.parameters["DatabaseName"], self.parameters["TableInput"]["Name"]
        )
        if named and named != table.as_dict()["VersionId"]:
            raise JsonRESTError("ConcurrentModificationException", "Update table failed")
        return update(self)

    GlueResponse.update_table = checked


def serve(port: int, switch: Path | None) -> None:
    """Serve until killed; throttled while there is a file ``switch``."""
    import logging

    check_versions_of_glue()
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    if switch is not None:
        app = throttled(app, switch)
    run_simple(HOST, port, app, threaded=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

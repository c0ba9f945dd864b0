"""
A small S3 server whose every request takes a fixed time, for any number of them at once.

moto takes 3 ms of CPU a request and one mutex for all, which would dominate the measurement. This
one takes a fraction of a millisecond (``/.far/stats`` shows it), and its requests wait
concurrently. Half of the delay is before the effect and half after it, as on a real round trip.
Making a connection costs nothing, for all engines alike. Signatures are not checked.

``python server.py DELAY_MS [BUCKET FOLDER]`` serves until its standard input ends; objects are kept in
memory. The bucket has the files of the folder from the start.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from farstore.objects import Bucket, Object, RefusedError

HOST = "127.0.0.1"
CONTROL = "/.far/"
REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 304: "Not Modified"}
REASONS |= {404: "Not Found", 412: "Precondition Failed", 416: "Range Not Satisfiable"}
_KEY_OF_DELETE = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
Answer = tuple[int, dict[str, str], bytes]


class Request:
    """One request, whole."""

    __slots__ = ("arrived_s", "body", "headers", "key", "method", "path", "query")

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, target, _ = first.split(" ", 2)
        self.headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        parts = urlsplit(target)
        self.path = unquote(parts.path)
        self.key = self.path[1:].partition("/")[2]
        asked = parse_qs(parts.query, keep_blank_values=True)
        self.query = {name: values[0] for name, values in asked.items()}
        self.body = _unchunked(body) if _is_chunked(self.headers) else body
        self.arrived_s = time.monotonic()


class Store:
    """The effects of requests, and their counts."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._buckets: dict[str, Bucket] = {}
        #: arrived, effective, kind, key, status, bytes in, bytes out
        self.log: list[tuple[float, float, str, str, int, int, int]] = []

    def load(self, bucket: str, folder: Path) -> None:
        """Put the files of a folder into a bucket, without requests."""
        made = self._buckets.setdefault(bucket, Bucket())
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                made.put(str(file.relative_to(folder)), file.read_bytes(), time.time(), {})

    def answer(self, request: Request) -> Answer:
        """Do it, whole, before anything else is done."""
        if request.path.startswith(CONTROL):
            return self._control(request)
        bucket = self._buckets.setdefault(request.path[1:].partition("/")[0], Bucket())
        try:
            kind, status, headers, body = self._serve(bucket, request)
        except RefusedError as error:
            kind, status, headers = request.method, error.status, {}
            body = f"<Error><Code>{error.code}</Code><Message>{error.code}</Message></Error>"
        sent = body if isinstance(body, bytes) else body.encode()
        name = request.key or request.query.get("prefix", "")
        sizes = len(request.body), len(sent)
        self.log.append((request.arrived_s, time.monotonic(), kind, name, status, *sizes))
        return status, headers, sent

    def _serve(
        self, bucket: Bucket, request: Request
    ) -> tuple[str, int, dict[str, str], bytes | str]:
        method, key, query = request.method, request.key, request.query
        if not key:
            if method == "POST":
                return "DELETE", 200, {}, self._delete_all(bucket, request.body)
            listing = method == "GET" and "location" not in query
            return ("LIST", 200, {}, _page(bucket, query)) if listing else (method, 200, {}, b"")
        if "uploads" in query or "uploadId" in query:
            return self._upload(bucket, request)
        if method == "PUT":
            made = bucket.put(key, self._content(request), time.time(), request.headers)
            copied = "x-amz-copy-source" in request.headers
            told = f"<CopyObjectResult><ETag>{made.e_tag}</ETag></CopyObjectResult>"
            return "PUT", 200, {"ETag": made.e_tag}, told if copied else b""
        if method == "DELETE":
            bucket.delete(key)
            return "DELETE", 204, {}, b""
        found = bucket.get(key)
        if found is None:
            raise RefusedError(404, "NoSuchKey")
        return (method, *_content_of(found, request.headers))

    def _content(self, request: Request) -> bytes:
        source = request.headers.get("x-amz-copy-source")
        if source is None:
            return request.body
        name, _, key = unquote(source).lstrip("/").partition("/")
        found = self._buckets[name].get(key) if name in self._buckets else None
        if found is None:
            raise RefusedError(404, "NoSuchKey")
        return found.data

    def _upload(
        self, bucket: Bucket, request: Request
    ) -> tuple[str, int, dict[str, str], bytes | str]:
        method, key, query = request.method, request.key, request.query
        if "uploads" in query:
            told = f"<UploadId>{bucket.begin_upload()}</UploadId><Key>{escape(key)}</Key>"
            return "POST", 200, {}, _xml("InitiateMultipartUploadResult", told)
        upload = query["uploadId"]
        if method == "PUT":
            tag = bucket.add_part(upload, int(query["partNumber"]), self._content(request))
            return "PART", 200, {"ETag": tag}, b""
        if method == "DELETE":
            bucket.drop_upload(upload)
            return "DELETE", 204, {}, b""
        made = bucket.end_upload(upload, key, time.time(), request.headers)
        told = f"<Key>{escape(key)}</Key><ETag>{escape(made.e_tag)}</ETag>"
        return "PUT", 200, {}, _xml("CompleteMultipartUploadResult", told)

    def _delete_all(self, bucket: Bucket, body: bytes) -> str:
        told = []
        for found in _KEY_OF_DELETE.findall(body):
            key = _unescaped(found.decode())
            bucket.delete(key)
            told.append(f"<Deleted><Key>{escape(key)}</Key></Deleted>")
        return _xml("DeleteResult", "".join(told))

    def _control(self, request: Request) -> Answer:
        """
        ``stats``: sums over requests that touch ``?part=``; ``log``: those requests themselves.
        """
        part = request.query.get("part", "")
        rows = [row for row in self.log if part in row[3]]
        if request.path.endswith("log"):
            return 200, {}, json.dumps(rows).encode()
        data = [row for row in rows if row[2] in ("PUT", "PART") and row[3].endswith(".parquet")]
        kinds: dict[str, int] = {}
        for row in rows:
            kinds[row[2]] = kinds.get(row[2], 0) + 1
        told = {
            "requests": len(rows),
            "kinds": kinds,
            "refused": sum(row[4] in (409, 412) for row in rows),
            "bytes_in": sum(row[5] for row in rows if row[2] in ("PUT", "PART")),
            "data_files": sum(row[2] == "PUT" and row[4] == 200 for row in data),
            "data_bytes": sum(row[5] for row in data),
            "at_once": max(
                (sum(a <= row[0] < e for a, e, *_ in rows) for row in rows[:100]), default=0
            ),
            "busy_s": max((row[1] for row in rows), default=0.0)
            - min((row[0] for row in rows), default=0.0),
            "all_requests": len(self.log),
            "cpu_s": time.process_time(),
        }
        return 200, {}, json.dumps(told).encode()


class Connection(asyncio.Protocol):
    """One client; its requests are answered in order, each after the delay."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._busy = False
        self._continued = False
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._busy:
            self._take()

    def _take(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        found = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        size = end + 4 + (int(found[1]) if found else 0)
        body: bytes | None = bytes(self._buffer[end + 4 : size])
        if re.search(rb"\r\ntransfer-encoding: *chunked", head, re.IGNORECASE):
            body, size = _pieces(self._buffer, end + 4)
        if body is None or len(self._buffer) < size:
            if not self._continued and b"100-continue" in head.lower():
                self._continued = True
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        request = Request(head, body)
        del self._buffer[:size]
        self._busy, self._continued = True, False
        delay_s = 0.0 if request.path.startswith(CONTROL) else self._store.delay_s
        self._later(delay_s / 2, lambda: self._do(request, delay_s))

    def _do(self, request: Request, delay_s: float) -> None:
        status, headers, body = self._store.answer(request)
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}"]
        headers.setdefault("Content-Type", "application/xml")
        headers.setdefault("Content-Length", str(len(body)))
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Date: {formatdate(usegmt=True)}", "x-amz-request-id: 0", "", ""]
        sent = "\r\n".join(lines).encode("latin-1")
        if request.method != "HEAD" and status not in (204, 304):
            sent += body
        self._later(delay_s / 2, lambda: self._send(sent))

    def _send(self, sent: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(sent)
        self._busy = False
        self._take()

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        if seconds:
            self._loop.call_later(seconds, do)
        else:
            do()


def _content_of(found: Object, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    told = {
        "ETag": found.e_tag,
        "Last-Modified": formatdate(found.modified_s, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
    }
    data = found.data
    if headers.get("if-none-match") == found.e_tag:
        return 304, told, b""
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", ""))
    if asked is None or not (asked[1] or asked[2]):
        told["Content-Length"] = str(len(data))
        return 200, told, data
    start = int(asked[1]) if asked[1] else max(0, len(data) - int(asked[2]))
    end = min(int(asked[2]) + 1, len(data)) if asked[1] and asked[2] else len(data)
    if start >= len(data):
        raise RefusedError(416, "InvalidRange")
    told["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
    told["Content-Length"] = str(end - start)
    return 206, told, data[start:end]


def _page(bucket: Bucket, query: dict[str, str]) -> str:
    after = query.get("continuation-token") or query.get("start-after") or ""
    most = int(query.get("max-keys") or 1000)
    page = bucket.list(query.get("prefix", ""), query.get("delimiter", ""), after, most)
    parts = [f"<IsTruncated>{str(page.after is not None).lower()}</IsTruncated>"]
    parts += [f"<Prefix>{escape(query.get('prefix', ''))}</Prefix>"]
    parts += [f"<KeyCount>{len(page.objects) + len(page.prefixes)}</KeyCount>"]
    parts += [f"<MaxKeys>{most}</MaxKeys>"]
    if page.after is not None:
        parts += [f"<NextContinuationToken>{escape(page.after)}</NextContinuationToken>"]
    for key, found in page.objects:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.modified_s))
        told = f"<Key>{escape(key)}</Key><LastModified>{stamp}</LastModified>"
        told += f"<ETag>{escape(found.e_tag)}</ETag><Size>{len(found.data)}</Size>"
        parts += [f"<Contents>{told}<StorageClass>STANDARD</StorageClass></Contents>"]
    parts += [
        f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in page.prefixes
    ]
    return _xml("ListBucketResult", "".join(parts))


def _xml(name: str, inner: str) -> str:
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{space}">{inner}</{name}>'


def _unescaped(text: str) -> str:
    for entity, mark in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(entity, mark)
    return text


def _is_chunked(headers: dict[str, str]) -> bool:
    return headers.get("x-amz-content-sha256", "").startswith("STREAMING-")


def _unchunked(body: bytes) -> bytes:
    """The content that AWS' own clients send in signed pieces."""
    return _pieces(body + b"\r\n\r\n", 0)[0] or b""


def _pieces(buffer: bytes | bytearray, at: int) -> tuple[bytes | None, int]:
    """Join pieces with lengths; return them and the position after them; None if incomplete."""
    found = []
    while (end := buffer.find(b"\r\n", at)) >= 0:
        size = int(bytes(buffer[at:end]).partition(b";")[0], 16)
        if not size:  # trailers, then an empty line
            last = buffer.find(b"\r\n\r\n", end)
            return (None, 0) if last < 0 else (b"".join(found), last + 4)
        found.append(bytes(buffer[end + 2 : end + 2 + size]))
        at = end + 2 + size + 2
    return None, 0


async def serve(delay_s: float, bucket: str = "", folder: str = "") -> None:
    """Serve on a free port, which is printed first, until the parent process ends."""
    store = Store(delay_s)
    if folder:
        store.load(bucket, Path(folder))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(store), HOST, 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]) / 1000, *sys.argv[2:]))

"""The far store as a child process, its accounts, and a check that its conditions are atomic."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

HOST = "127.0.0.1"
BUCKET = "bench"
REGION = "us-east-1"
KEY = "bench"  # the server ignores it, but clients need a key to sign with
RACERS = 4
RACES = 150
STEPS = 40


class FarStore:
    """
    The server in a process of its own; ``with FarStore(60) as store`` and use ``store.url``.

    Its bucket has the files of ``folder`` from the start, if there is one.
    """

    def __init__(self, delay_ms: float, folder: Path | None = None) -> None:
        self.delay_ms = delay_ms
        self.folder = folder
        self.url = ""  # once it runs
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        program = Path(__file__).with_name("server.py")
        words = [sys.executable, str(program), str(self.delay_ms)]
        words += [] if self.folder is None else [BUCKET, str(self.folder)]
        # It ends when its input does, so also when this process is killed.
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        port = self._process.stdout.readline().decode("ascii").strip()
        if not port:
            self.__exit__()
            raise RuntimeError("the far store did not start")
        self.url = f"http://{HOST}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def accounts(url: str, part: str) -> dict[str, Any]:
    """The store's work for names with ``part`` in them; costs no delay."""
    with urllib.request.urlopen(f"{url}/.far/stats?part={quote(part)}", timeout=30) as answer:
        return dict(json.load(answer))


def s3_options(url: str) -> dict[str, str]:
    """The common facts, by the names that AWS' tools use."""
    return {"endpoint": url, "region": REGION, "access_key_id": KEY, "secret_access_key": KEY}


def race(url: str, *, racers: int, names: int) -> list[int]:
    """How many of some threads' clients won each name by a create-if-absent."""
    from obstore.exceptions import AlreadyExistsError

    stores = [_store(url) for _ in range(racers)]

    def run(number: int, name: int) -> bool:
        try:
            stores[number].put(f"check/race-{name}", str(number).encode(), mode="create")
        except AlreadyExistsError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(racers) as pool:
        return [sum(pool.map(run, range(racers), [name] * racers)) for name in range(names)]


def check(url: str) -> dict[str, int]:
    """
    Race clients for conditional writes: each name has one winner, each step of a counter one.

    Raises:
        RuntimeError: Two of them won.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(RACERS, mp_context=context) as pool:
        races = list(pool.map(_race, [(url, number) for number in range(RACERS)]))
    winners = [sum(won[name] for won, _ in races) for name in range(RACES)]
    steps = sum(done for _, done in races)
    counted = int(_store(url).get("check/counter").bytes().to_bytes())
    if any(one != 1 for one in winners) or counted != steps:
        raise RuntimeError(f"the far store is not atomic: {winners}, {counted} of {steps} steps")
    return {"racers": RACERS, "names": RACES, "steps": steps}


def _race(who: tuple[str, int]) -> tuple[list[bool], int]:
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    url, number = who
    store = _store(url)
    won = []
    for name in range(RACES):
        try:
            store.put(f"check/{name}", str(number).encode(), mode="create")
            won.append(True)
        except AlreadyExistsError:
            won.append(False)
    with contextlib.suppress(AlreadyExistsError):
        store.put("check/counter", b"0", mode="create")
    done = 0
    while done < STEPS:
        found = store.get("check/counter")
        mode: Any = {"e_tag": found.meta["e_tag"]}
        try:
            store.put("check/counter", str(int(found.bytes().to_bytes()) + 1).encode(), mode=mode)
            done += 1
        except PreconditionError:
            pass
    return won, done


def _store(url: str) -> Any:
    from obstore.store import S3Store

    options: Any = {"allow_http": True}
    told = s3_options(url)
    return S3Store(
        BUCKET,
        endpoint=told["endpoint"],
        region=told["region"],
        access_key_id=told["access_key_id"],
        secret_access_key=told["secret_access_key"],
        virtual_hosted_style_request=False,
        client_options=options,
    )


if __name__ == "__main__":
    with FarStore(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0) as chosen:
        started = time.perf_counter()
        print(check(chosen.url), f"{time.perf_counter() - started:.1f} s")
        told = accounts(chosen.url, "")
        each_us = told["cpu_s"] / told["all_requests"] * 1e6
        print(f"{told['all_requests']} requests, {each_us:.0f} microseconds of CPU each")

"""
One process of one release: it obeys lines of JSON on its input and answers each with a line.

process.py TABLE PROPERTIES

It uses only the common part of all releases, so the same file runs with the code of each of them:
``PYTHONPATH`` decides. An engine version in ``HOODOO_TEST_RAISE`` makes it a later release, in
which commits need that version.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import hoodoo
from timeline.errors import HoodooError


def rows(keys: list[str], value: int) -> pa.Table:
    return pa.table(
        {"id": keys, "p": [key[0] for key in keys], "v": pa.array([value] * len(keys), pa.int64())}
    )


def raise_version(version: int) -> None:
    from timeline.model import slot as engine_version
    from timeline.model.slot import SlotKind

    engine_version.ENGINE_VERSION = version
    engine_version.LEAST_FOR_SLOT = {**engine_version.LEAST_FOR_SLOT, SlotKind.COMMIT: version}


def acts_on(table: Any) -> dict[str, Callable[..., object]]:
    def upsert(keys: list[str], value: int) -> None:
        table.upsert(rows(keys, value))

    def many(prefix: str, count: int) -> None:
        """Each write adds a key of its own, and updates one that all processes update."""
        for number in range(count):
            table.upsert(rows([f"{prefix}{number}", "shared"], number))

    def schedule(service: str) -> str | None:
        planned = table.services.schedule(service)
        return None if planned is None else str(planned.requested_time)

    def execute(time: str) -> bool:
        return table.services.execute(time) is not None

    def read() -> list[list[object]]:
        found = table.to_arrow().select(["id", "v"]).sort_by("id").to_pylist()
        return [[one["id"], one["v"]] for one in found]

    def service(name: str) -> bool:
        return getattr(table.services, name)() is not None

    return {one.__name__: one for one in (upsert, many, schedule, execute, read, service)} | {
        "code": lambda: str(Path(hoodoo.__file__).parents[1])
    }


def main() -> None:
    address, properties = sys.argv[1], json.loads(sys.argv[2])
    if version := os.environ.get("HOODOO_TEST_RAISE"):
        raise_version(int(version))
    with hoodoo.open_table(address, properties=properties) as table:
        acts = acts_on(table)
        for line in sys.stdin:
            act, *arguments = json.loads(line)
            try:
                answer: object = {"is": acts[act](*arguments)}
            except HoodooError as error:
                answer = {"error": error.as_document(), "type": type(error).__name__}
            print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main()

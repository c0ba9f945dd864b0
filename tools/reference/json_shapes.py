"""
The page of JSON documents, from the output of real commands.

Each command below runs on a small table. The page lists the fields and types of its documents. A
field without a sentence in ``MEANINGS`` is an error, so a new field needs one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

import hoodoo
from hoodoo.cli.app import main
from hoodoo.cli.committer import HealthReporter
from hoodoo.committer.server import CommitterReport
from lockproviders.sql.client import SqlClient
from lockproviders.sql.settings import SqlSettings
from timeline.model.file_names import slot_path
from timeline.system import SystemClock, SystemIds
from tools.reference.json_meanings import MEANINGS, TITLES

HEAD = """# JSON

Made by `python -m tools.reference` from the output of commands; do not edit by hand.

`-o json` prints one document, `-o ndjson` one line. `hoodoo read` prints a row as an object of its columns. Names and types of fields stay;
later releases may add fields. `[]` means each entry of a list, `*` each value by name. Times of the timeline are 17 digits in the zone of
the table; other times are ISO 8601 in UTC. Sizes are bytes.

"""
ROWS = '{"id":1,"city":"Oslo","temp":4.5}\n{"id":2,"city":"Lima","temp":19.0}\n'
MORE = '{"id":1,"city":"Oslo","temp":5.5}\n{"id":3,"city":"Lima","temp":1.0}\n'
CREATE = ("--schema", "id long, city string, temp double", "--key", "id", "--partition-by", "city")
AUDIT = ("--hoodie-conf", "hoodoo.lock.audit=true")
STREAMER = (
    *("--source-class", "JsonDFSSource", "--hoodie-conf", "hoodie.streamer.source.dfs.root=in"),
    *("--hoodie-conf", "hoodie.datasource.write.recordkey.field=id"),
)
#: Objects whose names are data.
MAPS = {
    "explain --matrix.rules",
    "explain --matrix.kinds",
    "diff.columns",
    "table upgrade.changes",
    "writers show.writers[].agreement",
    "metadata create.records",
    "metadata create-index.records",
    "metadata rebuild.records",
}
#: The commands in the order in which they run, each with its arguments; the table comes first.
SAMPLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("table create", (*CREATE, "--table-type", "MERGE_ON_READ")),
    ("write", ("--input", "rows.ndjson", *AUDIT)),
    ("write", ("--input", "more.ndjson", *AUDIT)),
    ("write --dry-run", ("--input", "rows.ndjson", "--dry-run")),
    ("log", ()),
    ("explain", ("@-1",)),
    ("explain --contention", ("--contention",)),
    ("timeline show", ()),
    ("read --to", ("--to", "rows.parquet")),
    ("diff", ("@-2", "@-1")),
    ("files", ()),
    ("table show", ()),
    ("table verify", ()),
    ("writers show", ()),
    ("locks holders", ()),
    ("locks doctor", ()),
    ("locks audit", ()),
    ("config check", ()),
    ("config show", ("--set-only",)),
    ("savepoint create", ("@-1",)),
    ("savepoint list", ()),
    ("savepoint delete", ("@-1", "--yes")),
    ("services run", ()),
    ("services plan", ()),
    ("services cancel", ("@-1", "--yes")),
    ("table orphans", ()),
    ("table upgrade", ("--dry-run",)),
    ("table adopt", ("--dry-run",)),
    (
        "table alter",
        (
            *("--add", "fresh=double", "--dry-run"),
            *("--hoodie-conf", "hoodie.schema.on.read.enable=true"),
        ),
    ),
    ("table repair-keys", ("--dry-run",)),
    ("table repair-moments", ("--dry-run",)),
    ("metadata create", ("--yes",)),
    ("metadata create-index", ("by_city", "--column", "city", "--yes")),
    ("metadata status", ()),
    ("metadata verify", ()),
    ("metadata repair", ("--yes",)),
    ("metadata rebuild", ("record_index", "--yes")),
    ("metadata drop-index", ("by_city", "--yes")),
    ("metadata drop", ("--yes",)),
    ("restore", ("@-2", "--yes")),
    ("rollback", ("@-1", "--yes")),
    ("table drop", ("--yes",)),
)
#: A SQL lock with a holder, for ``locks break``.
LOCK = (
    "hoodie.write.lock.provider=sql\nhoodoo.lock.sql.url={path}\n"
    "hoodoo.lock.sql.create_table=true\n"
)
HOLDER = {
    "owner": "host/9/w2",
    "host": "host",
    "pid": 9,
    "application": "loader",
    "purpose": "publish 20260101000000000",
    "since_ms": 1_700_000_000_000,
    "nonce": "0" * 32,
}
#: Commands without a document, or one that needs a server: help for a shell, a demonstration, ...
WITHOUT_SECTION = {"completion", "demo", "locks run", "sync"}
Shape = dict[str, set[str]]


def kind_of(value: Any) -> str:
    """Return the JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "text"
        case list():
            return "list"
        case _:
            return "object"


def fields_of(value: Any, path: str, command: str) -> Iterator[tuple[str, str]]:
    """Yield each field of a document with its type, those inside after their parent."""
    if isinstance(value, list):
        for each in value:
            if isinstance(each, dict | list):
                yield from fields_of(each, f"{path}[]", command)
    elif isinstance(value, dict):
        is_map = f"{command}.{path}" in MAPS
        for name, each in value.items():
            inner = f"{path}.{'*' if is_map else name}" if path else name
            yield inner, kind_of(each)
            yield from fields_of(each, inner, command)


def documents() -> Iterator[tuple[str, Any]]:
    """Run the commands; yield the name and the document of each."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder), ExitStack() as stack:
        Path("rows.ndjson").write_text(ROWS, encoding="utf-8")
        Path("more.ndjson").write_text(MORE, encoding="utf-8")
        for command, arguments in SAMPLES:
            if command == "writers show":
                stack.enter_context(_writer_and_reader())
            if command == "config check":
                stack.close()
            if command == "table drop":
                yield from _documents_of_services()
                yield from _documents_of_recovery()
            found = run(*command.split(" --")[0].split(), "t", *arguments)
            yield command, found
            if command == "writers show":
                writer = found["writers"][0]["writer_id"]
                gone = run("writers", "forget", "t", writer, "--force", "--dry-run")
                yield "writers forget", gone
        yield "explain --matrix", run("explain", "--matrix")
        Path("in").mkdir()
        Path("rows.ndjson").rename("in/rows")
        yield "streamer", run("streamer", "--target-base-path", "t", *STREAMER)
        yield "errors", run("read", "missing")


def _documents_of_services() -> Iterator[tuple[str, Any]]:
    """Yield the lines and the health files of a worker, and the health file of a committer."""
    written: list[Any] = []
    for _ in range(2):
        run("write", "t", "--input", "more.ndjson")
    with patch("hoodoo.cli.services.write_health_file", lambda _, one: written.append(one)):
        found = CliRunner(env={**os.environ, "NO_COLOR": "1"}).invoke(
            main,
            ["services", "worker", "t", "--rounds", "1", "--health", "worker.json",
             "--hoodie-conf", "hoodie.compact.inline.max.delta.commits=1", "-o", "ndjson"],
        )  # fmt: skip
    for line in found.stdout.splitlines():
        yield "services worker", json.loads(line)
    for document in written:
        yield "services worker --health", document
    HealthReporter(Path("committer.json"), SystemClock()).write("serving", CommitterReport())
    yield "committer --health", json.loads(Path("committer.json").read_text(encoding="utf-8"))


def _documents_of_recovery() -> Iterator[tuple[str, Any]]:
    """Yield the document of a broken lock, and of a damaged slot."""
    path = Path("locks.db").absolute()
    Path("sql.properties").write_text(LOCK.format(path=path), encoding="utf-8")
    settings, ids = SqlSettings(url=str(path), create_table=True, lease_ms=60_000), SystemIds()
    client = SqlClient(
        settings.database(ids),
        f"file:{Path('t').absolute()}",
        settings=settings,
        clock=SystemClock(),
        ids=ids,
    )
    client.try_acquire(json.dumps(HOLDER))
    yield "locks break", run("locks", "break", "t", "--props", "sql.properties", "--yes")
    with hoodoo.open_table("t") as table:
        damaged = Path("t", slot_path(table.context.commit_log.head() + 1))
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_bytes(b"damaged")
    yield "table end-slot", run("table", "end-slot", "t", "--dry-run")
    damaged.unlink()


def _writer_and_reader() -> ExitStack:
    """Return a registered writer and a reader with a lease, open until the result is closed."""
    stack = ExitStack()
    mode = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    table = stack.enter_context(hoodoo.open_table("t", properties=mode))
    table.upsert([{"id": 4, "city": "Oslo", "temp": 0.5}])
    stack.enter_context(table.pin())
    return stack


def run(*arguments: str) -> Any:
    """Return the document that a command prints; an error's comes on standard error."""
    found = CliRunner(env={**os.environ, "NO_COLOR": "1"}).invoke(main, [*arguments, "-o", "json"])
    text = found.stdout or found.stderr
    try:
        return json.loads(text)
    except ValueError as error:
        raise SystemExit(f"hoodoo {' '.join(arguments)} prints no JSON: {text}") from error


def shapes() -> dict[str, Shape]:
    """Return the fields of each command's documents, each with all its types."""
    found: dict[str, Shape] = {}
    for command, document in documents():
        shape = found.setdefault(command, {})
        for name, kind in fields_of(document, "", command):
            shape.setdefault(name, set()).add(kind)
    return found


def meaning(command: str, field: str) -> str:
    """
    Return the sentence about a field.

    Raises:
        SystemExit: There is none; it names the field.
    """
    words = field.split(".")
    last = ".".join(words[-2:]) if words[-1] == "*" else words[-1]
    for key in (f"{command}.{field}", f"{command}.{last}", field, last):
        if key in MEANINGS:
            return MEANINGS[key]
    raise SystemExit(f"tools/reference/json_meanings.py lacks a sentence on {command}.{field}")


def section(command: str, shape: Shape, commit: Shape) -> str:
    """Return the section of a command."""
    title = TITLES.get(command, f"hoodoo {command}")
    text = f"\n## {title}\n"
    shown = shape
    if command != "write" and commit.keys() <= shape.keys():
        text += "\nThe fields of [hoodoo write](#hoodoo-write)"
        shown = {name: kinds for name, kinds in shape.items() if name not in commit}
        text += ", and these:\n" if shown else ".\n"
    if shown:
        rows = "".join(
            f"| `{name}` | {', '.join(sorted(kinds))} | {meaning(command, name)} |\n"
            for name, kinds in shown.items()
        )
        text += f"\n| Field | Type | Meaning |\n|---|---|---|\n{rows}"
    return text


def page() -> str:
    """Return the page."""
    found = shapes()
    commit = found["write"]
    for shape in found.values():
        if commit.keys() <= shape.keys():
            for name in commit:
                commit[name] |= shape[name]
    titles = [TITLES.get(one, f"hoodoo {one}") for one in found]
    contents = "".join(f"- [{one}](#{one.lower().replace(' ', '-')})\n" for one in titles)
    sections = "".join(section(name, shape, commit) for name, shape in found.items())
    return HEAD + contents + sections

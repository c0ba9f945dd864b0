"""Secrets are hidden by key name, in addresses and in messages of libraries (SEC5)."""

from __future__ import annotations

import time

import pytest

from timeline.errors import CorruptTableError
from timeline.redaction import HIDDEN, redact, redact_text

SHOWN = "s3cr3t"


@pytest.mark.parametrize(
    "key",
    [
        *("hoodie.x.pwd", "x.apikey", "x.api-key", "x.auth", "x.oauth2", "x.authorization"),
        *("x.token", "x.secret", "x.credentials", "PASSWORD", "x.pass", "sas", "x.privateKey"),
    ],
)
def test_values_of_secret_keys_are_hidden(key: str) -> None:
    assert redact(key, SHOWN) == HIDDEN


@pytest.mark.parametrize(
    "key",
    [
        *("author", "x.bypass", "hoodie.write.path", "recordkey.field", "x.signal", "x.authority"),
        *("fencing_token", "fencingToken", "x.fencing.token", "write_token"),
    ],
)
def test_other_keys_are_shown(key: str) -> None:
    assert redact(key, "a,b") == "a,b"


@pytest.mark.parametrize(
    "text",
    [
        f"jdbc:sqlserver://h:1433;databaseName=x;user=sa;password={SHOWN};encrypt=true",
        f"jdbc:sqlserver://h;password={{{SHOWN};x}};encrypt=true",
        f"jdbc:mysql://h/db?user=a&password={SHOWN}",
        f"url=jdbc:mysql://h/db?sslKeyPassword={SHOWN}&x=1",
        f"jdbc:oracle:thin:scott/{SHOWN}@host:1521:x",
        f"postgresql://u:{SHOWN}@h/db",
        f"postgresql://u:a/b@{SHOWN}@h/db",
        f"https://account.blob/x?sv=1&sig={SHOWN}&se=2",
        f"host=h user=u password='{SHOWN} b' dbname=x",
        f'{{"user": "a", "api_key": "{SHOWN}"}}',
        f"Authorization=Bearer {SHOWN}",
    ],
)
def test_secrets_inside_of_values_are_hidden(text: str) -> None:
    assert SHOWN not in redact("url", text)
    assert SHOWN not in str(CorruptTableError(f"cannot connect: {text}", path=text).as_document())


@pytest.mark.parametrize(
    "text", ["s3://bucket/a@b/c", "http://h:8080/x", "jdbc:mysql://h:3306/db?user=a", "a=b;c=d"]
)
def test_addresses_without_secrets_are_shown(text: str) -> None:
    assert redact_text(text) == text


FILE_ID = "5faa6998-54c3-4786-a0e1-b33812d412be-0"


@pytest.mark.parametrize("column", ["token", "my_secret", "auth", "day"])
@pytest.mark.parametrize(
    "folders", ["{}=3", "x/{}=3", "{}=2026-01-01/y", "{}=3/password=b%20c", "{}="]
)
@pytest.mark.parametrize(
    "name",
    [
        "f.parquet",
        FILE_ID,
        f"{FILE_ID}_0-0-0_20261127140102020.parquet",
        f"{FILE_ID}_0-0-0_20261127140102020.parquet.marker.CREATE",
        f".{FILE_ID}_20261127140102020.log.1_0-0-0.cdc",
        ".hoodie_partition_metadata",
    ],
)
def test_file_paths_of_a_table_are_shown_for_every_column_name(
    column: str, folders: str, name: str
) -> None:
    path = f"{folders.format(column)}/{name}"
    texts = (path, f"the file is gone: {path}", f"{path!r}, then", f"s3://bucket/t/{path} (torn)")
    for text in texts:
        error = CorruptTableError(text, path=path)
        assert (error.message, error.fields["path"]) == (text, path)
    assert SHOWN not in redact_text(f"{path}: https://h/x?token={SHOWN}/{name} password={SHOWN}")


@pytest.mark.parametrize("text", ["fencing_token=7 of 9", '{"write_token": "1-0-1"}'])
def test_counters_named_tokens_are_shown(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "token",
        "://a:",
        "jdbc:a:",
        "password={",
        "a",
        "/a=",
        "a=b/",
        "token=token/",
        "/token=" + "a-" * 99,
    ],
)
def test_redaction_takes_linear_time(piece: str) -> None:
    begin = time.process_time()
    redact_text(piece * (100_000 // len(piece)))
    assert time.process_time() - begin < 3

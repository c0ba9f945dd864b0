"""Secrets are hidden by the names of keys, in addresses and in texts of others (SEC5)."""

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
    "key", ["author", "x.bypass", "hoodie.write.path", "recordkey.field", "x.signal", "x.authority"]
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


@pytest.mark.parametrize("piece", ["token", "://a:", "jdbc:a:", "password={", "a"])
def test_hiding_takes_time_by_length_only(piece: str) -> None:
    begin = time.process_time()
    redact_text(piece * (100_000 // len(piece)))
    assert time.process_time() - begin < 3

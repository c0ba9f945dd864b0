"""The SQL lock over TLS: the server must prove itself, and nothing goes out in plain text."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockproviders.sql.client import SqlClient, SqlSettings
from tests.servers import server_missing
from tests.servers.mariadb import MariaDb, needs_mariadb
from tests.servers.postgres import Postgres, memory_folder, needs_postgres
from timeline.errors import UnsafeSetupError
from timeline.system import SystemClock, SystemIds

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Certificates:
    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Database:
    url: str
    plain_url: str  # of a server without TLS
    user_in_tls: str  # a query that shows whether our connections are encrypted


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    """An authority made here, and a certificate for 127.0.0.1 by it."""
    if shutil.which("openssl") is None:
        server_missing("no openssl")
    return made_in(tmp_path_factory.mktemp("tls"))


def made_in(folder: Path, address: str = "127.0.0.1") -> Certificates:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes")
    openssl(
        *("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (folder / "names").write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth\n")
    openssl(
        *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
        *("-CAcreateserial", "-out", "server.pem", "-extfile", "names"),
    )
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")


@pytest.fixture(scope="module")
def mariadb(certificates: Certificates) -> Iterator[Database]:
    needs_mariadb()
    options = (
        f"--ssl-cert={certificates.certificate}",
        f"--ssl-key={certificates.key}",
        f"--ssl-ca={certificates.authority}",
    )
    with (
        tempfile.TemporaryDirectory(prefix="mdb", dir=memory_folder()) as folder,
        MariaDb(Path(folder) / "tls", options=options) as server,
        MariaDb(Path(folder) / "plain") as plain,
    ):
        for each in (server, plain):
            each.create_database("locks", user="lock", password="geheim")
        yield Database(
            *(f"mysql://lock:geheim@127.0.0.1:{each.port}/locks" for each in (server, plain)),
            "SHOW SESSION STATUS LIKE 'Ssl_cipher'",
        )


@pytest.fixture(scope="module")
def postgres(certificates: Certificates) -> Iterator[Database]:
    needs_postgres()
    with (
        Postgres(tls=(certificates.certificate, certificates.key)) as server,
        Postgres() as plain,
    ):
        yield Database(
            server.url,
            plain.url,
            "SELECT ssl::text, cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
        )


@pytest.fixture(params=["mariadb", "postgres"])
def database(request) -> Database:
    return request.getfixturevalue(request.param)


def client_of(url: str, authority: Path | str = "") -> SqlClient:
    ids = SystemIds()
    settings = SqlSettings.from_properties(
        {
            "hoodoo.lock.sql.url": url,
            "hoodoo.lock.sql.create_table": "true",
            "hoodoo.lock.sql.tls": "verify",
            "hoodoo.lock.sql.tls.ca": str(authority),
        }
    )
    return SqlClient(settings.database(ids), "t", settings=settings, clock=SystemClock(), ids=ids)


def test_a_verified_server_is_used_with_encryption(database, certificates) -> None:
    client = client_of(database.url, certificates.authority)
    holding = client.try_acquire("me")
    ((_, cipher),) = client._table.database.rows(database.user_in_tls)
    assert cipher.startswith("TLS_")
    holding.release()
    client.close()


def test_server_of_an_unknown_authority_is_refused(database, tmp_path) -> None:
    with pytest.raises(UnsafeSetupError):
        client_of(database.url, made_in(tmp_path).authority).try_acquire("me")


def test_server_with_a_certificate_for_another_address_is_refused(database, certificates) -> None:
    url = database.url.replace("127.0.0.1", "localhost")
    with pytest.raises(UnsafeSetupError):
        client_of(url, certificates.authority).try_acquire("me")


def test_server_without_tls_is_refused_and_receives_nothing(database, certificates) -> None:
    with pytest.raises(UnsafeSetupError):
        client_of(database.plain_url, certificates.authority).try_acquire("me")

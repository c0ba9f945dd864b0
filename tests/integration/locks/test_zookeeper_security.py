"""Identity and encryption of the ZooKeeper lock on a server that asks for them (SEC7)."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockproviders.hookspecs import LockContext
from lockproviders.zookeeper.client import ENTRY, ZooKeeperClient
from tests.servers.ports import free_port
from tests.servers.zookeeper import ZooKeeperServer
from timeline.errors import UnavailableError, UnsafeSetupError
from timeline.system import SystemClock, SystemIds

pytestmark = pytest.mark.integration

OURS = "hoodoo.lock.zookeeper."
HUDIS = "hoodie.write.lock.zookeeper."
NETTY = "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"


@pytest.fixture
def new_client() -> Iterator[Callable[..., ZooKeeperClient]]:
    made: list[ZooKeeperClient] = []

    def make(
        address: str, *, key: str = "t", patience_ms: int = 20_000, **ours: str
    ) -> ZooKeeperClient:
        settings = {
            HUDIS + "url": address,
            HUDIS + "base_path": "/hudi/locks",
            HUDIS + "lock_key": key,
            HUDIS + "session_timeout_ms": "30000",
            HUDIS + "connection_timeout_ms": str(patience_ms),
        } | {OURS + name.replace("_", "."): value for name, value in ours.items()}
        context = LockContext(
            properties=settings,
            table_identity=key,
            table_address=f"/data/{key}",
            table_folder=None,
            clock=SystemClock(),
            ids=SystemIds(),
        )
        client = ENTRY.factory(context)
        assert isinstance(client, ZooKeeperClient)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


def identity(folder: Path, text: str) -> str:
    file = folder / text.partition(":")[0]
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def test_nodes_of_an_identity_are_accessible_to_it_alone(
    tmp_path: Path, new_client: Callable[..., ZooKeeperClient]
) -> None:
    with ZooKeeperServer(tmp_path / "server") as server:
        loader = identity(tmp_path, "loader:secret one")
        other = identity(tmp_path, "other:secret two")
        holding = new_client(server.address, identity_file=loader).try_acquire("me")
        assert holding is not None
        assert new_client(server.address, identity_file=loader).try_acquire("colleague") is None
        for stranger in (
            new_client(server.address, identity_file=other),
            new_client(server.address),
        ):
            with pytest.raises(UnsafeSetupError) as caught:
                stranger.try_acquire("stranger")
            assert caught.value.kind == "lock_access"
            assert "secret" not in caught.value.message
            path = f"/hudi/locks/t/{_only_name(loader, server)}"
            with pytest.raises(UnsafeSetupError):
                stranger.session().delete(path)
        assert holding.is_held()
        holding.release()


def test_sasl_identity_is_required_and_wrong_passwords_are_refused(
    tmp_path: Path, new_client: Callable[..., ZooKeeperClient]
) -> None:
    users = tmp_path / "users.conf"
    users.write_text(
        "Server { org.apache.zookeeper.server.auth.DigestLoginModule required "
        'user_loader="right"; };\n'
    )
    server = ZooKeeperServer(
        tmp_path / "server",
        lines=("authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",),
        options=(
            f"-Djava.security.auth.login.config={users}",
            "-Dzookeeper.sessionRequireClientSASLAuth=true",
        ),
    )
    with server:
        right = identity(tmp_path, "loader:right")
        holding = new_client(server.address, identity_file=right, sasl="DIGEST-MD5").try_acquire(
            "me"
        )
        assert holding is not None
        assert holding.is_held()
        holding.release()
        wrong = identity(tmp_path, "loader:wrong")
        with pytest.raises(UnsafeSetupError) as caught:
            new_client(server.address, identity_file=wrong, sasl="DIGEST-MD5").try_acquire("me")
        assert "wrong" not in caught.value.message


def test_tls_is_used_and_an_unknown_server_is_refused(
    tmp_path: Path, new_client: Callable[..., ZooKeeperClient]
) -> None:
    certificate, key = _self_signed(tmp_path, "server")
    stranger, _ = _self_signed(tmp_path, "stranger")
    store = tmp_path / "store.pem"
    store.write_bytes(key.read_bytes() + certificate.read_bytes())
    port = free_port()
    server = ZooKeeperServer(
        tmp_path / "server",
        lines=(
            NETTY,
            f"secureClientPort={port}",
            "secureClientPortAddress=127.0.0.1",
            f"ssl.keyStore.location={store}",
            "ssl.keyStore.type=PEM",
            f"ssl.trustStore.location={certificate}",
            "ssl.trustStore.type=PEM",
            "ssl.clientAuth=none",
        ),
    )
    with server:
        address = f"127.0.0.1:{port}"
        holding = new_client(address, tls="true", tls_ca=str(certificate)).try_acquire("me")
        assert holding is not None
        assert new_client(server.address).try_acquire("in the open") is None
        holding.release()
        with pytest.raises(UnavailableError):
            new_client(address, tls="true", tls_ca=str(stranger), patience_ms=2_000).try_acquire(
                "deceived"
            )
        with pytest.raises(UnavailableError):
            new_client(address, patience_ms=2_000).try_acquire("plain text to a secure port")


def _only_name(loader: str, server: ZooKeeperServer) -> str:
    from kazoo.client import KazooClient

    looker = KazooClient(server.address, auth_data=[("digest", Path(loader).read_text())])
    looker.start()
    try:
        (name,) = looker.get_children("/hudi/locks/t")
        return str(name)
    finally:
        looker.stop()
        looker.close()


def _self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, each as a file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    secret = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, key

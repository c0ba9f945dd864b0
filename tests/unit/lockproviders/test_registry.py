"""Providers are found by name in tables, and plug-ins only if allowed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockproviders.hookspecs import LockCapabilities, LockContext, LockProviderEntry, hookimpl
from lockproviders.registry import _ENTRIES_BUILT_IN, ProviderRegistry, build_lock
from timeline.errors import SettingError, UnknownProviderError, UnsafeSetupError
from timeline.ports.ports import StorageCapabilities
from timeline.properties.options import TABLE_LAYER, PropertySet
from timeline.storage.open_storage import storage_for

NOTHING = LockCapabilities(
    between_processes=False,
    between_hosts=False,
    excludes_java=False,
    expires=False,
    fencing_tokens=False,
)


def entry(name: str, *jvm_class_names: str) -> LockProviderEntry:
    return LockProviderEntry(
        name=name,
        factory=lambda context: None,
        capabilities=NOTHING,
        jvm_class_names=jvm_class_names,
    )


class Plugin:
    def __init__(self, *entries: LockProviderEntry) -> None:
        self._entries = entries

    @hookimpl
    def lock_provider_entries(self) -> tuple[LockProviderEntry, ...]:
        return self._entries


class StorageAt:
    def __init__(self, local_root: str | None, *, shared: bool = True) -> None:
        self.capabilities = StorageCapabilities(
            atomic_create=True, shared_between_processes=shared, local_root=local_root
        )


def lock_for(machine, storage: StorageAt, registry=None, options=None, **properties: str):
    return build_lock(
        options or properties,
        storage=storage,
        clock=machine.clock,
        ids=machine.ids,
        events=machine.events,
        executor=machine.executor,
        table_identity="t",
        table_address="/tables/t",
        registry=registry,
    )


def test_this_release_has_its_providers() -> None:
    known = set(ProviderRegistry().known)
    assert known >= {"filesystem", "in_process", "dynamodb", "dynamodb_implicit"}


def test_each_provider_of_this_release_is_found_under_the_name_of_its_entry() -> None:
    assert _ENTRIES_BUILT_IN
    assert {name: ProviderRegistry().find(name).name for name in _ENTRIES_BUILT_IN} == {
        name: name for name in _ENTRIES_BUILT_IN
    }


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("filesystem", "filesystem"),
        ("in_process", "in_process"),
        (
            "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
            "filesystem",
        ),
        ("org.apache.hudi.client.transaction.lock.InProcessLockProvider", "in_process"),
        ("org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider", "zookeeper"),
        (
            "org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider",
            "zookeeper_implicit",
        ),
        ("org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider", "dynamodb"),
        (
            "org.apache.hudi.aws.transaction.lock.DynamoDBBasedImplicitPartitionKeyLockProvider",
            "dynamodb_implicit",
        ),
    ],
)
def test_provider_answers_to_our_name_and_hudis(options: str, found: str) -> None:
    assert ProviderRegistry().find(options).name == found


def test_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownProviderError, match="lock provider is unknown") as caught:
        ProviderRegistry().find("org.example.Lock")
    known = list(ProviderRegistry().known)
    assert caught.value.fields == {"name": "org.example.Lock", "known": known}


@pytest.mark.parametrize("name", ["os.system", "planted.module.Lock", "", "Filesystem"])
def test_named_module_is_never_imported(name: str) -> None:
    with pytest.raises(UnknownProviderError):
        ProviderRegistry().find(name)
    assert "planted" not in sys.modules


def test_plugin_adds_its_providers() -> None:
    registry = ProviderRegistry()
    registry.register(Plugin(entry("theirs", "com.example.Lock")), "theirs")
    assert registry.find("com.example.Lock").name == "theirs"


@pytest.mark.parametrize(
    "doubled",
    [
        entry("filesystem"),
        entry("theirs", "org.apache.hudi.client.transaction.lock.InProcessLockProvider"),
    ],
)
def test_taken_name_is_refused_and_nothing_of_the_plugin_kept(doubled) -> None:
    registry = ProviderRegistry()
    known = set(registry.known)
    with pytest.raises(UnsafeSetupError) as caught:
        registry.register(Plugin(doubled), "theirs")
    assert caught.value.kind == "duplicate_provider"
    assert set(registry.known) == known
    registry.register(Plugin(entry("fresh")), "theirs")
    assert set(registry.known) == known | {"fresh"}


def test_unknown_hook_is_refused() -> None:
    class Misspelt:
        @hookimpl
        def lock_provider_entriez(self) -> list[LockProviderEntry]:
            return []

    with pytest.raises(UnsafeSetupError) as caught:
        ProviderRegistry().register(Misspelt(), "misspelt")
    assert caught.value.kind == "bad_plugin"


def test_plugin_registered_twice_is_refused() -> None:
    registry = ProviderRegistry()
    plugin = Plugin(entry("theirs"))
    registry.register(plugin, "theirs")
    with pytest.raises(UnsafeSetupError):
        registry.register(plugin, "theirs")
    assert "theirs" in registry.known


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution ``planted-locks`` with one plug-in that is found but not imported."""
    (tmp_path / "planted_locks.py").write_text(
        "from lockproviders.hookspecs import hookimpl\n"
        "@hookimpl\n"
        "def lock_provider_entries():\n"
        "    return []\n"
    )
    facts = tmp_path / "planted_locks-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-locks\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[hoodoo.plugins]\nlocks = planted_locks\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_plugin_is_imported_only_when_its_distribution_is_allowed() -> None:
    registry = ProviderRegistry()
    registry.load([])
    assert "planted_locks" not in sys.modules
    with pytest.raises(UnknownProviderError):
        registry.load(["planted-locks:other"])
    assert "planted_locks" not in sys.modules
    registry.load(["planted-locks:locks"])
    assert sys.modules.pop("planted_locks")


def test_allowed_distribution_that_is_not_installed_is_named() -> None:
    with pytest.raises(UnknownProviderError, match="not-there"):
        ProviderRegistry().load(["not-there"])


def test_the_lock_of_a_local_table_is_a_file_by_default(machine, tmp_path) -> None:
    assert lock_for(machine, StorageAt(str(tmp_path))).provider == "filesystem"


def test_the_lock_of_a_memory_table_belongs_to_the_process_by_default(machine) -> None:
    assert lock_for(machine, StorageAt(None, shared=False)).provider == "in_process"


def test_the_lock_of_a_shared_store_must_be_named(machine) -> None:
    with pytest.raises(UnsafeSetupError):
        lock_for(machine, StorageAt(None))


def test_the_deadline_is_read_from_the_properties(machine, tmp_path) -> None:
    storage = StorageAt(str(tmp_path))
    with lock_for(machine, storage).acquire("first"):
        impatient = lock_for(machine, storage, **{"hoodoo.lock.deadline.ms": "300"})
        with pytest.raises(Exception, match="waited 300 ms"):
            impatient.acquire("second")


def test_wrong_property_makes_no_lock(machine, tmp_path) -> None:
    with pytest.raises(SettingError):
        lock_for(machine, StorageAt(str(tmp_path)), **{"hoodoo.lock.deadline.ms": "soon"})


def test_a_table_does_not_choose_the_lock_of_its_writers(machine) -> None:
    seen: list[dict[str, str]] = []

    def factory(context: LockContext):
        seen.append(dict(context.properties))
        return SimpleNamespace(identity="mine")

    registry = ProviderRegistry()
    registry.register(Plugin(replace(entry("mine"), factory=factory)), "mine")
    hostile = {
        "hoodie.write.lock.provider": "filesystem",
        "hoodie.write.lock.zookeeper.url": "thief.example:2181",
        "hoodie.table.name": "flights",
    }
    options = PropertySet().with_layer(TABLE_LAYER, hostile)
    options = options.with_layer("code", {"hoodie.write.lock.provider": "mine"})
    lock_for(machine, StorageAt(None), registry, options)
    assert seen == [{"hoodie.write.lock.provider": "mine", "hoodie.table.name": "flights"}]


OPENED = "s3://lake/t2"
IMPLICIT = {
    "hoodie.write.lock.provider": "zookeeper_implicit",
    "hoodie.write.lock.zookeeper.url": "zk1",
}
STORED = {"hoodie.write.lock.provider": "storage_based"}


def identity_at(machine, address: str, properties: dict[str, str], **options: str) -> str:
    storage = storage_for(address, options={"hoodoo.storage.s3.anonymous": "true"})
    lock = build_lock(
        {**properties, **options},
        storage=storage,
        clock=machine.clock,
        ids=machine.ids,
        events=machine.events,
        executor=machine.executor,
        table_identity=storage.base_uri,
        table_address=address,
    )
    return lock.identity


@pytest.mark.parametrize("provider", [IMPLICIT, STORED])
def test_a_base_path_of_another_table_moves_no_lock_there(machine, provider, caplog) -> None:
    """With one properties file for several tables, Java's writers of this table lock this table."""
    here = identity_at(machine, OPENED, provider)
    led = identity_at(machine, OPENED, provider, **{"hoodie.base.path": "s3://lake/t1"})
    assert led == here
    assert "s3://lake/t1" in caplog.text


def test_a_base_path_option_gives_javas_spelling_of_the_table(machine) -> None:
    as_java = identity_at(machine, OPENED + "/", IMPLICIT)
    assert as_java != identity_at(machine, OPENED, IMPLICIT)
    for spelled in ("s3://lake/t2/", "s3a://lake/t2/"):
        options = {"hoodie.base.path": spelled}
        assert identity_at(machine, OPENED, IMPLICIT, **options) == as_java
    elsewhere = {"hoodie.base.path": "hdfs://nn/lake/t2"}  # the same store under another address
    assert identity_at(machine, OPENED, IMPLICIT, **elsewhere) != as_java


def test_a_local_base_path_counts_unless_it_is_another_folder_of_this_machine(
    machine, tmp_path
) -> None:
    (tmp_path / "t1").mkdir()
    (tmp_path / "t2").mkdir()
    opened = str(tmp_path / "t2")
    here = identity_at(machine, opened, IMPLICIT)
    other = {"hoodie.base.path": str(tmp_path / "t1")}
    assert identity_at(machine, opened, IMPLICIT, **other) == here
    mounted = {"hoodie.base.path": "/where/java/has/mounted/it"}
    assert identity_at(machine, opened, IMPLICIT, **mounted) != here


class Merging(Plugin):
    def __init__(self, *class_names: str) -> None:
        super().__init__(entry(f"lock of {class_names[0]}"))
        self.merger = SimpleNamespace(class_names=class_names)

    @hookimpl
    def record_mergers(self) -> tuple[object, ...]:
        return (self.merger,)


def test_a_plugin_may_provide_mergers_in_addition_to_locks() -> None:
    first, second = Merging("com.example.First"), Merging("com.example.Second")
    registry = ProviderRegistry()
    assert registry.mergers() == ()
    registry.register(first, "first")
    registry.register(second, "second")
    assert "lock of com.example.First" in registry.known
    assert set(map(id, registry.mergers())) == {id(first.merger), id(second.merger)}
    assert registry.mergers(["com.example.Second", "org.apache.hudi.Other"]) == (second.merger,)
    # Java's own classes name no plug-in.
    assert len(registry.mergers(["org.apache.hudi.DefaultSparkRecordMerger"])) == 2

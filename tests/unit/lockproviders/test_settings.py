"""Properties become lock settings, and wrong ones are named."""

from __future__ import annotations

import pytest

from lockproviders.settings import LOCK_OPTIONS, LockSettings, default_provider
from timeline.errors import SettingError, UnsafeSetupError
from timeline.ports.storage import StorageCapabilities


def test_defaults_are_hudis() -> None:
    settings = LockSettings.from_properties({})
    assert settings.model_dump() == {
        "provider": None,
        "try_ms": 60_000,
        "retries": 50,
        "pause_ms": 5_000,
        "deadline_ms": 120_000,
        "hold_budget_ms": 5_000,
        "audit": False,
        "audit_keep_days": 7,
        "plugins": (),
        "filesystem_path": None,
        "filesystem_expire_minutes": 0,
    }


def test_fields_and_options_agree() -> None:
    assert set(LOCK_OPTIONS) == set(LockSettings.model_fields)
    for field, option in LOCK_OPTIONS.items():
        default = LockSettings.model_fields[field].default
        spelled = str(default).lower() if isinstance(default, bool) else str(default)
        assert option.default == (None if default in (None, ()) else spelled)


def test_properties_set_the_fields() -> None:
    settings = LockSettings.from_properties(
        {
            "hoodie.write.lock.provider": " filesystem ",
            "hoodie.write.lock.client.num_retries": "3",
            "hoodie.write.lock.filesystem.expire": "2",
            "hoodoo.plugins.allow": "one, other:entry",
            "hoodie.table.name": "not ours",
        }
    )
    assert settings.provider == "filesystem"
    assert settings.retries == 3
    assert settings.plugins == ("one", "other:entry")
    assert settings.filesystem_expire_minutes == 2


@pytest.mark.parametrize("value", ["soon", "1.5", "-1", "999999999999"])
def test_wrong_value_is_named_with_its_key(value: str) -> None:
    with pytest.raises(SettingError) as caught:
        LockSettings.from_properties({"hoodoo.lock.deadline.ms": value})
    assert caught.value.fields["key"] == "hoodoo.lock.deadline.ms"
    assert caught.value.fields["value"] == value
    assert caught.value.fields["suggestion"]


def test_default_provider_follows_the_storage() -> None:
    local = StorageCapabilities(
        atomic_create=True, shared_between_processes=True, local_root="/data/t"
    )
    memory = StorageCapabilities(
        atomic_create=True, shared_between_processes=False, local_root=None
    )
    bucket = StorageCapabilities(atomic_create=True, shared_between_processes=True, local_root=None)
    unsafe = StorageCapabilities(
        atomic_create=False, shared_between_processes=True, local_root=None
    )
    assert default_provider(local) == "filesystem"
    assert default_provider(memory) == "in_process"
    assert default_provider(bucket) == "storage_based"
    with pytest.raises(UnsafeSetupError, match=r"hoodie\.write\.lock\.provider"):
        default_provider(unsafe)

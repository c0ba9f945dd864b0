"""Addresses that a user may write, and the storage of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from timeline.errors import InvalidInputError, SettingError, StorageCapabilityError
from timeline.storage.open_storage import storage_for


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}", "file://localhost{}"])
def test_all_local_forms_open_the_same_table(tmp_path: Path, form: str) -> None:
    base = tmp_path.resolve() / "a b%20c"
    assert storage_for(form.format(base)).base_uri == f"file:{base}"


def test_path_objects_and_colons_in_paths_are_taken(tmp_path: Path) -> None:
    base = tmp_path.resolve() / "k=a:b"
    assert storage_for(base).base_uri == f"file:{base}"


@pytest.mark.parametrize("scheme", ["hdfs", "WASB", "oss"])
def test_other_stores_are_refused_with_the_supported_ones(scheme: str) -> None:
    with pytest.raises(StorageCapabilityError, match="not supported") as refused:
        storage_for(f"{scheme}://bucket/t")
    assert refused.value.fields["missing"] == scheme.lower()


@pytest.mark.parametrize("scheme", ["s3", "S3A", "s3n"])
def test_every_spelling_of_s3_opens_the_same_table(scheme: str) -> None:
    assert storage_for(f"{scheme}://bucket//a/t/").base_uri == "s3://bucket/a/t"


def test_unknown_schemes_are_refused() -> None:
    with pytest.raises(StorageCapabilityError, match="is unknown"):
        storage_for("ftp://host/t")


@pytest.mark.parametrize(
    "address", ["", "  ", "a\x00b", "a\nb", "file:", "file:t", "file://host/t"]
)
def test_bad_addresses_are_refused(address: str) -> None:
    with pytest.raises(InvalidInputError):
        storage_for(address)


def test_durability_must_be_a_known_word(tmp_path: Path) -> None:
    storage_for(tmp_path, options={"hoodoo.storage.durability": "Relaxed"})
    with pytest.raises(SettingError) as refused:
        storage_for(tmp_path, options={"hoodoo.storage.durability": "maybe"})
    assert refused.value.fields["key"] == "hoodoo.storage.durability"

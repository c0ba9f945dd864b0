"""Sources of the keys that sign slots, and refused settings (SLOT-7, SEC5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoodoo.configuration import KEY_VARIABLE, Layers, check, describe, slot_signing_of
from timeline.errors import SettingError, UnsafeSetupError
from timeline.model.slot import NO_SEALS, SlotSigning, TamperEvidence
from timeline.properties.options import TABLE_LAYER, PropertySet

EVIDENCE, FILE = "hoodoo.slots.tamper.evidence", "hoodoo.slots.tamper.key.file"
KEY, OLD = "k" * 32, "o" * 40


def properties_of(**properties: str) -> PropertySet:
    keys = {"evidence": EVIDENCE, "file": FILE}
    return PropertySet().with_layer("code", {keys[name]: v for name, v in properties.items()})


def key_file(folder: Path, text: str = f"{KEY}\n\n{OLD}\n", mode: int = 0o600) -> str:
    file = folder / "slots.key"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_no_hash_link_is_written_by_default():
    assert slot_signing_of(PropertySet(), environment={}) == NO_SEALS
    assert slot_signing_of(properties_of(evidence="", file=""), environment={}) == NO_SEALS
    assert NO_SEALS.link("a" * 64, b"") is None


def test_a_file_contains_the_key_and_older_ones(tmp_path: Path):
    found = slot_signing_of(properties_of(evidence="hmac", file=key_file(tmp_path)), environment={})
    assert found == SlotSigning(evidence=TamperEvidence.HMAC, keys=(KEY.encode(), OLD.encode()))
    assert found.key == KEY.encode()


def test_the_environment_contains_the_key_where_no_file_does(tmp_path: Path):
    there = {KEY_VARIABLE: OLD}
    assert slot_signing_of(properties_of(evidence="hmac"), environment=there).key == OLD.encode()
    named = properties_of(evidence="hmac", file=key_file(tmp_path))
    assert slot_signing_of(named, environment=there).key == KEY.encode()


def test_hashes_need_no_key_but_use_it_to_verify(tmp_path: Path):
    found = slot_signing_of(properties_of(evidence="hash", file=key_file(tmp_path)), environment={})
    assert (found.key, len(found.keys)) == (None, 2)


def test_signatures_without_a_key_are_refused():
    with pytest.raises(SettingError) as refused:
        slot_signing_of(properties_of(evidence="hmac"), environment={})
    assert refused.value.fields["key"] == EVIDENCE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int):
    with pytest.raises(UnsafeSetupError, match="chmod 600"):
        slot_signing_of(
            properties_of(evidence="hmac", file=key_file(tmp_path, mode=mode)), environment={}
        )


@pytest.mark.parametrize("text", ["", "\n", "k" * 31, f"{KEY}\nshort"])
def test_a_key_that_is_missing_or_short_is_refused(tmp_path: Path, text: str):
    with pytest.raises(UnsafeSetupError) as refused:
        slot_signing_of(
            properties_of(evidence="hash", file=key_file(tmp_path, text)), environment={}
        )
    assert refused.value.kind == "tamper_key"
    assert "kkk" not in str(refused.value)


def test_a_missing_key_file_is_refused(tmp_path: Path):
    with pytest.raises(UnsafeSetupError, match="cannot be read"):
        slot_signing_of(properties_of(evidence="hash", file=str(tmp_path / "none")), environment={})


def test_a_table_cannot_set_slot_signing(tmp_path: Path):
    """A user who can write into its folder could switch signing off, or name another key."""
    asked = properties_of(evidence="hmac", file=key_file(tmp_path))
    turned = PropertySet().with_layer(TABLE_LAYER, {EVIDENCE: "hash", FILE: "/etc/passwd"})
    assert slot_signing_of(turned, environment={}) == NO_SEALS
    over = asked.with_layer(TABLE_LAYER, {EVIDENCE: "none", FILE: ""})
    assert slot_signing_of(over, environment={}).key == KEY.encode()


def test_keys_are_not_shown(tmp_path: Path):
    asked = properties_of(evidence="hmac", file=key_file(tmp_path))
    shown = [repr(slot_signing_of(asked, environment={})), repr(describe(asked))]
    assert not [text for text in shown if "kkk" in text or "ooo" in text]


def test_a_check_of_a_configuration_reads_the_key(tmp_path: Path):
    file = key_file(tmp_path, mode=0o644)
    found = check(Layers(environment={}, code={EVIDENCE: "hash", FILE: file}).load())
    assert [problem.kind for problem in found] == ["tamper_key"]

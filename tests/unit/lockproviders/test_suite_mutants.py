"""The shipped suite detects locks that do not lock."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from lockproviders.client import LockClient
from lockproviders.hookspecs import LockCapabilities
from lockproviders.testing import LockProviderSuite
from lockproviders.testing.contender import build_lock_over

CAUGHT = (AssertionError, pytest.fail.Exception)


class GrantedHolding:
    fencing_token = 1

    def expires_in_ms(self) -> int | None:
        return None

    def renew(self) -> None:
        pass

    def is_held(self) -> bool:
        return True

    def release(self) -> None:
        pass


class AlwaysGranting:
    identity = "mutant"
    margin_ms = 0

    def try_acquire(self, owner_text: str) -> GrantedHolding:
        return GrantedHolding()

    def holder(self) -> str | None:
        return None

    def close(self) -> None:
        pass


class MutantSuite(LockProviderSuite):
    __test__ = False
    rounds = 200  # enough rounds that the processes overlap, even with slow starts
    capabilities: ClassVar = LockCapabilities(
        between_processes=True,
        between_hosts=False,
        excludes_java=False,
        expires=False,
        fencing_tokens=True,
    )

    @staticmethod
    def make_client(folder: Path) -> LockClient:
        return AlwaysGranting()


def new_lock(*, deadline_ms: int = 30_000):
    return build_lock_over(AlwaysGranting(), deadline_ms=deadline_ms)


def test_lock_that_always_grants_is_caught_by_the_client_test() -> None:
    with pytest.raises(CAUGHT):
        MutantSuite().test_client_refuses_at_once_while_another_holds(AlwaysGranting)


def test_lock_that_always_grants_is_caught_between_threads(tmp_path) -> None:
    with pytest.raises(CAUGHT):
        MutantSuite().test_threads_exclude_each_other(tmp_path, new_lock)


def test_lock_that_always_grants_is_caught_between_processes(tmp_path) -> None:
    with pytest.raises(CAUGHT):
        MutantSuite().test_processes_exclude_each_other(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "test_timeout_names_the_holder",
        "test_refused_client_may_close_without_harm",
        "test_doctor_finds_it_healthy",
    ],
)
def test_lock_that_always_grants_is_caught_by(name: str) -> None:
    with pytest.raises(CAUGHT):
        getattr(MutantSuite(), name)(new_lock)


def test_tokens_that_do_not_grow_are_caught(tmp_path) -> None:
    with pytest.raises(CAUGHT):
        MutantSuite().test_fencing_tokens_grow(tmp_path, new_lock)

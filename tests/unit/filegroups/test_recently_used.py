"""A cache keeps what was used last, up to its bytes."""

from __future__ import annotations

from filegroups.recently_used import RecentlyUsed


def test_the_one_that_was_not_used_for_longest_leaves_first() -> None:
    kept: RecentlyUsed[str, str] = RecentlyUsed(bytes_max=20)
    kept.keep("one", "1", 10)
    kept.keep("two", "2", 10)
    kept.keep("two", "second", 10)  # counts once
    assert kept.find("one") == "1"
    kept.keep("new", "3", 10)
    assert [kept.find(key) for key in ("one", "two", "new")] == ["1", None, "3"]


def test_a_value_that_is_too_large_replaces_only_its_own() -> None:
    kept: RecentlyUsed[str, str] = RecentlyUsed(bytes_max=20)
    kept.keep("one", "1", 10)
    kept.keep("two", "2", 10)
    kept.keep("two", "large", 21)
    assert [kept.find(key) for key in ("one", "two")] == ["1", None]
    kept.keep("new", "3", 10)
    assert kept.find("one") == "1"

"""A conflict report names winner, file groups and retry scope, and maps to its error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from timeline.commit.conflict_report import KINDS, conflict_error, conflict_report_of
from timeline.errors import (
    ClaimConflictError,
    DuplicateKeyError,
    HoodooError,
    MetadataTableOnError,
    Reaction,
    RolledBackError,
    SchemaConflictError,
    ServiceConflictError,
    TableChangedError,
    WriteConflictError,
)
from timeline.model.commit_metadata import FileGroupId, WriteSet
from timeline.model.instant import Action
from timeline.rules.conflicts import ConcurrentCommit, Rebase, Rejected, RuleId

MINE, THEIRS = "20260102030405004", "20260102030405008"
RIVAL = ConcurrentCommit(
    action=Action.COMMIT,
    requested_time=THEIRS,
    completion_time="20260102030405011",
    write_set=WriteSet(),
    writer="load (pid 7 on h)",
)
GROUPS = tuple(FileGroupId("p", f"g{number:02}") for number in range(30))


def test_a_rebaseable_conflict_reports_the_file_groups_to_merge_again():
    report = conflict_report_of(
        MINE, Rebase(RuleId.SAME_FILE_GROUP_WRITTEN, "why", (RIVAL,), GROUPS)
    )
    assert (report.redo, report.retry_can_succeed) == ("file groups", True)
    assert report.winners == (f"{THEIRS} commit by load (pid 7 on h)",)
    assert len(report.file_groups) == 20
    assert report.text == (
        f"C1: why; winner {THEIRS} commit by load (pid 7 on h); "
        "both access p/g00, p/g01, p/g02 and 17 more"
    )


def test_a_partition_conflict_reports_the_partition():
    verdict = Rejected(RuleId.WRITTEN_INTO_MY_CLAIM, "why", (RIVAL,), partitions=("p",))
    report = conflict_report_of(MINE, verdict)
    assert (report.redo, report.partitions) == ("everything", ("p",))
    assert report.text.endswith("both access p")


def test_a_permanent_conflict_reports_nothing_to_retry():
    verdict = Rejected(RuleId.METADATA_TABLE_CHANGED, "why", (), retry_can_succeed=False)
    report = conflict_report_of(MINE, verdict)
    assert (report.redo, report.retry_can_succeed) == ("nothing", False)
    assert report.text == "C12: why"


def test_a_conflict_report_is_json_serializable():
    report = conflict_report_of(
        MINE, Rejected(RuleId.FILE_GROUP_REPLACED, "why", (RIVAL,), GROUPS[:1])
    )
    document = json.loads(json.dumps(report.as_document()))
    assert document == {
        "instant": MINE,
        "rule": "C2",
        "kind": "deleted_under_reader",
        "why": "why",
        "winners": [f"{THEIRS} commit by load (pid 7 on h)"],
        "file_groups": ["p/g00"],
        "partitions": [],
        "retry_can_succeed": True,
        "redo": "everything",
    }


@pytest.mark.parametrize(
    ("rule", "error", "kind"),
    [
        (RuleId.SAME_FILE_GROUP_WRITTEN, WriteConflictError, "write_conflict"),
        (RuleId.FILE_GROUP_REPLACED, WriteConflictError, "deleted_under_reader"),
        (RuleId.WRITTEN_WHAT_I_REPLACE, WriteConflictError, "written_what_is_replaced"),
        (RuleId.PARTITION_CLAIMED_BY_OTHER, ClaimConflictError, "partition_claimed"),
        (RuleId.WRITTEN_INTO_MY_CLAIM, ClaimConflictError, "written_into_claim"),
        (RuleId.TARGET_OF_ROLLBACK, RolledBackError, "rolled_back"),
        (RuleId.SOURCE_NOT_NEWEST, WriteConflictError, "source_cleaned"),
        (RuleId.PENDING_PLAN_OWNS_FILE_GROUP, ServiceConflictError, "service_conflict"),
        (RuleId.SAME_NEW_KEY, DuplicateKeyError, "duplicate_key"),
        (RuleId.SCHEMA_CHANGED, SchemaConflictError, "schema_conflict"),
        (RuleId.SAME_BATCH, WriteConflictError, "same_batch"),
        (RuleId.METADATA_TABLE_CHANGED, WriteConflictError, "metadata_table_changed"),
        (RuleId.TABLE_UPGRADED, TableChangedError, "table_version_changed"),
        (RuleId.KEYS_DROPPED, WriteConflictError, "keys_dropped"),
        (RuleId.REPLACED_TWICE, WriteConflictError, "deleted_twice"),
        (RuleId.INSERTED_WHERE_I_MISSED, WriteConflictError, "appended_into_read"),
        (RuleId.PROPERTIES_CHANGED, TableChangedError, "properties_changed"),
        (RuleId.STRATEGY_REFUSED, WriteConflictError, "strategy"),
        (RuleId.READ_WAS_CHANGED, WriteConflictError, "changed_under_read"),
        (RuleId.ANNOUNCED_BY_OTHER, WriteConflictError, "announced_conflict"),
        (RuleId.NESTED_PARTITION, WriteConflictError, "nested_conflict"),
    ],
)
def test_every_rule_has_its_error(rule: RuleId, error: type[HoodooError], kind: str):
    raised = conflict_error(conflict_report_of(MINE, Rejected(rule, "why", (RIVAL,))), rule)
    assert type(raised) is error
    assert raised.fields["report"]["rule"] == rule.value
    assert (raised.kind, raised.fields["report"]["kind"]) == (kind, kind)
    others = {
        RolledBackError: Reaction.STOP,
        MetadataTableOnError: Reaction.FIX_SETUP,
        TableChangedError: Reaction.REOPEN,
    }
    assert raised.reaction is others.get(error, Reaction.REDO)


def test_rule_ids_are_stable():
    assert [rule.value for rule in RuleId] == [f"C{number}" for number in range(22)]


@pytest.mark.parametrize("rule", KINDS, ids=lambda rule: rule.name.lower())
def test_the_page_on_concurrency_names_every_rule(rule: RuleId):
    page = (Path(__file__).parents[4] / "docs" / "concepts" / "conflicts.md").read_text(
        encoding="utf-8"
    )
    error = type(conflict_error(conflict_report_of(MINE, Rejected(rule, "why", ())), rule)).__name__
    assert f"| {rule.value} | `{KINDS[rule]}` | `{error}` |" in page


def test_every_rule_has_a_kind_of_its_own():
    assert set(KINDS) == set(RuleId) - {RuleId.NO_CONFLICT}
    assert len(set(KINDS.values())) == len(KINDS)

"""The file groups of pending clusterings that a writer must not change (CL-2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from filegroups.settings.settings import WriteSettings
from tests.unit.tableservices.plain_bench import Bench
from timeline.codecs.instant_avro import encode_requested_replace
from timeline.context import TableLimits
from timeline.errors import SettingError
from timeline.model.commit_metadata import FileGroupId
from timeline.model.plans import (
    ClusteringGroup,
    ClusteringPlan,
    RequestedReplaceMetadata,
    SliceInfo,
)
from timeline.pending_plans import (
    RECHECKED,
    file_groups_in_clustering,
    file_groups_to_avoid,
)
from timeline.properties.setting_enums import ClusteringUpdates, ForeignWriters

_GROUP = FileGroupId("p", "f1")


def _planned(*, by_us: bool) -> Bench:
    bench = Bench()
    plan = ClusteringPlan(
        input_groups=(ClusteringGroup(slices=(SliceInfo(file_id="f1", partition_path="p"),)),),
        extra_metadata={RECHECKED: "true"} if by_us else {},
    )
    body = encode_requested_replace(RequestedReplaceMetadata(clustering_plan=plan))
    bench.storage.create(".hoodie/timeline/20990101000000000.clustering.requested", body)
    return bench


@pytest.mark.spec("CL-2")
@pytest.mark.spec("CL-2")
@pytest.mark.parametrize(
    ("by_us", "limits", "reserved"),
    [
        (True, {}, False),
        (True, {"clustering_updates": ClusteringUpdates.ALLOW}, False),
        (True, {"clustering_updates": ClusteringUpdates.REJECT}, True),
        (True, {"foreign_writers": ForeignWriters.EXPECTED}, True),
        (False, {}, True),
        (False, {"clustering_updates": ClusteringUpdates.ALLOW}, True),
    ],
)
def test_only_a_clustering_that_validates_again_permits_writes_to_its_file_groups(
    by_us: bool, limits: dict[str, Any], reserved: bool
) -> None:
    context = replace(_planned(by_us=by_us).context, limits=TableLimits(**limits))
    timeline = context.active()
    assert set(file_groups_in_clustering(context, timeline)) == {_GROUP}
    assert set(file_groups_to_avoid(context, timeline)) == ({_GROUP} if reserved else set())


def test_allowing_updates_during_clustering_is_refused_in_mode_shared() -> None:
    key = "hoodie.clustering.updates.strategy"
    allowed = {key: ClusteringUpdates.ALLOW.value}
    assert WriteSettings.from_properties(allowed).clustering_updates is ClusteringUpdates.ALLOW
    with pytest.raises(SettingError, match="would lose the write"):
        WriteSettings.from_properties({**allowed, "hoodoo.foreign.writers": "expected"})
    with pytest.raises(SettingError, match="SparkRejectUpdateStrategy"):
        WriteSettings.from_properties({key: "SparkConsistentBucketDuplicateUpdateStrategy"})

"""What comes before and after each write of a table, whoever made its rows: checks, group, upkeep."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace

from filegroups.index.buckets import (
    has_bucket_rules,
    record_bucket_rules,
    record_misplaced_rows,
    refuse_other_buckets,
)
from filegroups.keys.bucketing import BucketRules
from filegroups.settings.known_keys import refuse_unsupported
from filegroups.settings.settings import WriteSettings
from filegroups.supported import refuse_unwritable
from filegroups.writing.row_checks import bucket_range_text
from filegroups.writing.workload import Workload
from filegroups.writing.write import write
from filegroups.writing.write_request import CommitResult, WriteRequest
from hoodoo.committer.client import group_commit_of
from hoodoo.factory import bucket_rules, may_misplace_rows, refuse_other_name
from hoodoo.services import Services
from hoodoo.writer_registration import register_writer
from timeline.context import TableContext
from timeline.model.table_config import TableConfig
from timeline.properties.options import PropertySet
from timeline.properties.properties_file import load_config
from timeline.properties.setting_enums import FailedWritesPolicy
from timeline.snapshot import Snapshot


class TableWriter:
    """
    Writes of one opened table.

    Args:
        context: The table.
        properties: Every effective property.
        settings: Of writes.
        services: Runs what is due after a commit.
    """

    def __init__(
        self,
        context: TableContext,
        properties: PropertySet,
        settings: WriteSettings,
        services: Services,
    ) -> None:
        self._context = context
        self._config = context.config
        self._properties = properties
        self._settings = settings
        self._services = services
        self._keeps_bucket_rules = False
        self._keeps_misplaced_rows = False
        self._refused_unsupported = False
        self._beginning = threading.Lock()  # threads that share one group commit
        self._group = group_commit_of(
            context, settings, before=self.before_group, after=self.after_group
        )

    @property
    def config(self) -> TableConfig:
        """The table's configuration. Outside: 1 get until a metadata table is seen to be off."""
        config = self._config
        if config.metadata_table_on and self._context.limits.without_metadata_table:
            now = load_config(self._context.ports.storage)
            config = replace(config, metadata_partitions=now.metadata_partitions, raw=now.raw)
            self._config = config
        return config

    def begin(self) -> None:
        """
        Refuse an impossible write; register the writer and start services before the first one.

        Errors: as ``refuse`` and ``register_writer``.
        """
        context, settings = self._context, self._settings
        with self._beginning:
            self.refuse()
            rules = self._bucket_rules_to_record()
            if rules is not None:  # before the registry names rules that are refused here
                refuse_other_buckets(context, rules)
            register_writer(context, self._properties, settings, bucket_range_text(settings))
            if rules is not None:
                record_bucket_rules(context, rules)
                self._keeps_bucket_rules = True
            if not self._keeps_misplaced_rows and may_misplace_rows(settings, context.config):
                record_misplaced_rows(context)
                self._keeps_misplaced_rows = True
            if not self.config.metadata_table_on:
                self._services.start_background()

    def refuse(self) -> None:
        """
        Refuse a write that this table does not allow; nothing is begun.

        Raises:
            MetadataTableOnError: The metadata table is on and is not to be switched off.
            SettingError: An option asks for what is not done.
            UnsupportedTableError: A feature of the table cannot be written yet.
        """
        config = self._context.config
        off = self._context.limits.without_metadata_table
        refuse_unwritable(config, without_metadata_table=off)
        config.merge.require_known()
        refuse_other_name(self._settings, config)
        if not self._refused_unsupported:  # by the first write: reading does not need these options
            refuse_unsupported(self._properties)
            self._refused_unsupported = True

    def write(self, plan: WriteRequest, workload: Workload | None) -> CommitResult:
        """Run one write, alone or in a group. Errors: as ``filegroups.writing.write.write``."""
        if self._group is not None:
            return self._group.write(plan, workload)
        looked = self._context.cached_snapshot()
        undone = self._roll_back_dead_writers(looked)
        receipt = write(self._context, plan, workload, None if undone else looked)
        self.after_group()
        return receipt

    def before_group(self) -> None:
        """Roll back dead writers before this process commits a group."""
        self._roll_back_dead_writers(self._context.cached_snapshot())

    def after_group(self) -> None:
        """Run the upkeep that is due after a commit."""
        outcome = self._services.after_commit()
        for warning in (*outcome.warnings, *self._services.take_failures()):
            warnings.warn(warning, stacklevel=3)

    def close(self) -> None:
        """End the group commit."""
        if self._group is not None:
            self._group.close()

    def _roll_back_dead_writers(self, looked: Snapshot) -> bool:
        """RB-11; not what would switch a metadata table off before a write that may be refused."""
        eager = self._settings.failed_writes_policy is FailedWritesPolicy.EAGER
        if not eager or self.config.metadata_table_on:
            return False
        return bool(self._services.rollback_dead_writers(looked.active))

    def _bucket_rules_to_record(self) -> BucketRules | None:
        """Another engine's table does not say how its buckets are made: compared with it once."""
        kept = self._keeps_bucket_rules or has_bucket_rules(self._context.config)
        return None if kept else bucket_rules(self._settings, self._context.config)

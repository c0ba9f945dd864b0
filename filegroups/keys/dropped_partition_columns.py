"""
Partition columns that files leave out: their values are in the folder's name.

With ``hoodie.datasource.write.drop.partition.columns`` Java Hudi returns them as text after the
table's other columns; hoodoo does the same. A partition path is parsed by the rules that made it
(fmt 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from filegroups.keys.keys import DEFAULT_PARTITION
from timeline.errors import CorruptTableError


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedPartitionColumns:
    """
    The partition fields and how folders name them.

    ``left_out`` are the fields that files lack: all of them, or fewer in a table that began to
    leave them out later.
    """

    fields: tuple[str, ...]
    dropped: tuple[str, ...]
    hive_style: bool = False
    url_encode: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns that files lack, as they are read."""
        return pa.schema([pa.field(name, pa.string()) for name in self.dropped])

    def values(self, partition_path: str) -> dict[str, str | None]:
        """
        Return the values in a partition path.

        Raises:
            CorruptTableError: It does not have the form that the table's properties describe.
        """
        parts = self._parts(partition_path.split("/"))
        if parts is None:
            raise CorruptTableError(
                "a folder's name does not tell the partition columns "
                f"{list(self.fields)}, which the files leave out: {partition_path}",
                kind="bad_partition_path",
                path=partition_path,
            )
        if self.url_encode:
            parts = [unquote(part) for part in parts]
        return {
            name: None if part == DEFAULT_PARTITION else part
            for name, part in zip(self.fields, parts, strict=True)
        }

    def fill(self, rows: pa.Table, partition_path: str) -> pa.Table:
        """Append the missing columns to rows of one partition."""
        values = self.values(partition_path)
        for column in self.schema:
            value = pa.scalar(values[column.name], pa.string())
            rows = rows.append_column(column, pa.repeat(value, rows.num_rows))
        return rows

    def _parts(self, levels: list[str]) -> list[str] | None:
        """Return one text per field; the folder of a time may have several levels."""
        if self.hive_style:
            found: list[str] = []
            for level in levels:
                named = self.fields[len(found) :]
                if named and level.startswith(f"{named[0]}="):
                    found.append(level.partition("=")[2])
                elif found:
                    found[-1] += f"/{level}"
                else:
                    return None
            return found if len(found) == len(self.fields) else None
        if len(self.fields) == 1:
            return ["/".join(levels)]
        return levels if len(levels) == len(self.fields) else None

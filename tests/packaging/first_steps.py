"""The first steps of a new user: create, write and read a table in the folder of the argument."""

from __future__ import annotations

import sys

import hoodoo

table = hoodoo.create_table(sys.argv[1], record_key="id", partition_by="city", ordering="at")
first = table.upsert([{"id": n, "city": "Oslo", "temp": 4.5, "at": 1} for n in range(3)])
table.upsert([{"id": 1, "city": "Oslo", "temp": 5.5, "at": 2}])
rows = table.to_arrow(columns=["id", "temp"], filter="temp > 5").to_pylist()
assert rows == [{"id": 1, "temp": 5.5}], rows
assert table.as_of(first.requested_time).to_arrow(filter="temp > 5").num_rows == 0
assert hoodoo.open_table(sys.argv[1]).count() == 3
print(hoodoo.__file__)

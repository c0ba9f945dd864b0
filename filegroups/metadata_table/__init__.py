"""The metadata table: keys, records and files of the partitions that index a table (fmt 14)."""

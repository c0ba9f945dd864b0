"""Sync a table with a catalog: its columns, properties and partitions, as Hudi's own sync does."""

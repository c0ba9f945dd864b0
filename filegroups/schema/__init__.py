"""Schemas of a table: as Arrow, as Avro, and how they change."""

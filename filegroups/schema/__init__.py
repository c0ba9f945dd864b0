"""Schemas of a table: Arrow, Avro and schema evolution."""

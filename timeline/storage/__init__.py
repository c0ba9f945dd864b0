"""Adapters of the storage port: where the bytes of a table may lie."""

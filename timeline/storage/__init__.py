"""Adapters of the storage port, one for each place where a table's bytes may be."""

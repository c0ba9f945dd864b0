"""Merge several versions of a record into one."""

"""Instants of a Hudi table, their order, and the commit."""

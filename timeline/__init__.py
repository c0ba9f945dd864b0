"""Instants of a Hudi table and their order: what happened, and when."""

"""Kits that other projects and our own tests use to check what is built on the ports."""

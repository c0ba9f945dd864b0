"""Test kits for adapters of the ports, for other projects and our own tests."""

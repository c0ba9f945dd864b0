"""Commit a write or a table service: begin, wait, validate, take the slot, apply it."""

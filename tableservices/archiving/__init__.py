"""Archiving: completed instants move to the history, and their commit slots are collected."""

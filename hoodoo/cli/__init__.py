"""
The command line: one module for each command, and one module that prints.

``main`` is the entry point of the installed command.
"""

from __future__ import annotations

from hoodoo.cli.app import main

__all__ = ["main"]

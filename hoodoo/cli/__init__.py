"""
The command line: one file per noun, one file that prints, no rule of its own.

``main`` is the entry point of the installed command.
"""

from __future__ import annotations

from hoodoo.cli.app import main

__all__ = ["main"]

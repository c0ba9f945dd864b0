"""``python -m hoodoo.cli``: the command line without an installed script."""

from __future__ import annotations

from hoodoo.cli.app import main

main()

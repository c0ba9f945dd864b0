"""``python -m hoodoo.cli``: the command line where no script is installed."""

from __future__ import annotations

from hoodoo.cli.app import main

main()

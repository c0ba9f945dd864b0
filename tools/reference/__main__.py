"""
Write the generated pages of ``docs/reference/`` from the code, or check that they are up to date.

Usage: python -m tools.reference [--check] [PAGE ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.reference import commands, json_shapes, licences, options, python_api, support

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES = {
    "options.md": options.page,
    "hudi-keys.md": options.every_key,
    "cli.md": commands.page,
    "json.md": json_shapes.page,
    "python.md": python_api.page,
    "support.md": support.page,
    "licences.md": licences.page,
}


def main() -> int:
    """Write or check the pages that are named, all by default; 1 if a page is out of date."""
    names = [one for one in sys.argv[1:] if one != "--check"] or list(PAGES)
    made = {FOLDER / name: PAGES[name]() for name in names}
    if "--check" not in sys.argv[1:]:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [
        path
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        print(f"out of date: docs/reference/{path.name}; run: python -m tools.reference")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())

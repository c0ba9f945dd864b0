"""What the documents promise must stay true: options, clauses, commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_configuration_page_is_made_from_the_option_tables() -> None:
    check = subprocess.run(
        [sys.executable, "tools/option_docs.py", "--check"], cwd=ROOT, check=False
    )
    assert check.returncode == 0, "run: python tools/option_docs.py"


def test_every_clause_cited_in_the_code_is_in_the_protocol() -> None:
    protocol = (ROOT / "docs/spec/protocol.md").read_text()
    known = set(re.findall(r"\*\*([A-Z]+(?:-[A-Z]+)*-\d+)\*\*", protocol))
    cited = set()
    for package in ("timeline", "lockproviders", "tableservices", "hoodoo"):
        for path in (ROOT / package).rglob("*.py"):
            for found in re.findall(r"\b((?:[A-Z]+-)+\d+)\b", path.read_text()):
                if found.split("-")[0] in {clause.split("-")[0] for clause in known}:
                    cited.add((found, str(path.relative_to(ROOT))))
    unknown = sorted((clause, path) for clause, path in cited if clause not in known)
    assert unknown == []

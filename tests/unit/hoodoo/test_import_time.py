"""What ``import hoodoo`` brings along."""

from __future__ import annotations

import subprocess
import sys


def test_importing_hoodoo_leaves_pandas_out() -> None:
    """Most of what is done with Arrow rows never needs it; a pushed filter imports it by itself."""
    code = "import sys, hoodoo; print('pandas' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"

"""All errors that hoodoo raises, for import by callers."""

from __future__ import annotations

from timeline.errors import *  # noqa: F403
from timeline.errors import __all__  # noqa: F401

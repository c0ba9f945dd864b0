"""Every error that hoodoo raises; a caller imports them from here."""

from __future__ import annotations

from timeline.errors import *  # noqa: F403
from timeline.errors import __all__  # noqa: F401

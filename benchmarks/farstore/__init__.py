"""An object store that is far away: the same for every engine, and counted."""

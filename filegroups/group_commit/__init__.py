"""Group commit: many writes in one instant, of a process's threads or of a host's processes."""

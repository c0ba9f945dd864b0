"""Roll back failed writes, and resolve writes of unknown outcome."""

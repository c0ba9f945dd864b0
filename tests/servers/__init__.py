"""Real servers for tests, each a child process started from packages alone, and a faulty wire."""

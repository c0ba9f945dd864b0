"""Table services: what keeps a table fast and small, run after commits or by a worker of its own."""

"""Table services: maintain a table after commits of a writer, or in a worker of its own."""

"""The streamer: batches of a source into a table, each with the source's checkpoint in its commit."""

"""Where rows lie: schema, keys, merging, indexes, files, and the reads and writes of a table."""

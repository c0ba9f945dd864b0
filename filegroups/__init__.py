"""Store the rows of a table: schema, keys, merging, indexes, files, reads and writes."""

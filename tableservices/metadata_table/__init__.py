"""The metadata table: compaction, clean and archive; builds and drops of its partitions."""

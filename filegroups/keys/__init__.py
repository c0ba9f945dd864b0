"""Record keys, partition paths and buckets of rows."""

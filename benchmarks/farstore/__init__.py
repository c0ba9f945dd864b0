"""A high-latency object store: the same for every engine, and its requests are counted."""

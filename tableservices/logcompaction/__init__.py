"""Log compaction: many small log files of a slice put together to one, beside the writers."""

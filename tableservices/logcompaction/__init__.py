"""Log compaction: merge many small log files of a file slice into one."""

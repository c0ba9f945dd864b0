"""Base files and log files: their bytes, and the merged rows of a file slice."""

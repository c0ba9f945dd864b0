"""The lock in a table of a SQL database, for those who run nothing else."""

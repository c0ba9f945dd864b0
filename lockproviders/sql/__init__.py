"""The lock in a table of a SQL database, for sites that run no other service."""

"""Cleaning: delete the data files that no retained snapshot, reader or writer needs."""

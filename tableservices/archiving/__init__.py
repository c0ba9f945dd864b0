"""Archiving: move completed instants to the archived timeline and truncate the commit log."""

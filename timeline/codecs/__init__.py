"""
Bytes to values and back, one module per format of the table.

Codecs are pure: they take bytes and give values, or raise `CorruptTableError` with the
path their caller names. They never open a file.
"""

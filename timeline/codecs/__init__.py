"""
Bytes to values and back, one module per format of the table.

Codecs are pure: they take bytes and return values, or raise `CorruptTableError` with the path that
the caller passes. They never open a file.
"""

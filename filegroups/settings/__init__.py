"""The options of a table's writers and readers, and their typed values."""

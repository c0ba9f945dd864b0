"""Base files, markers and the rewriting of a file group: what lies in a table's folders."""

"""The write path: rows placed, written, offered for publication, done again when refused."""

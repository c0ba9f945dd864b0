"""Options and settings: ``hoodie.*`` texts, their checked values, and the table's own file."""

"""What a user sets: from ``hoodie.*`` texts to checked settings, and the table's own file."""

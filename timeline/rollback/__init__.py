"""Taking back what failed, and deciding for good what nobody answered."""

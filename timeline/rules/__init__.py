"""Pure rules and literal tables: no I/O, no clock, no randomness."""

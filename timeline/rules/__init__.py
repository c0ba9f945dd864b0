"""The laws: pure functions and literal tables; no I/O, no clock, no randomness."""

"""The ports: all that the engine needs from outside; no other code has outside effects."""

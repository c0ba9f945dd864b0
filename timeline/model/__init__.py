"""
The values of the engine: frozen, typed, and without any effect.

Nothing in this folder reads a file, a clock or a random number, so every rule can be
tested by values alone.
"""

"""
The values of the engine: frozen, typed, without side effects.

Nothing here reads a file, a clock or a random number, so tests need only values.
"""

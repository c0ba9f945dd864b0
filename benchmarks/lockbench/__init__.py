"""The pieces of ``benchmarks/locks.py``: servers, contenders, bare clients and a counting wire."""

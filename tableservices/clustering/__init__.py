"""Clustering: rewrite file groups into fewer or better sorted ones."""

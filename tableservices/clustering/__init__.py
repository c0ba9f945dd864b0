"""Clustering: small files become big ones, and rows that are read together lie together."""

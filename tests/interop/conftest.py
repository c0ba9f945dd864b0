"""Makes Java Hudi available to every interop test."""

from tests.interop.java import java_oracle

__all__ = ["java_oracle"]

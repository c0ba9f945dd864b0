"""The shipped test suite for authors of lock providers: subclass ``LockProviderSuite``."""

from __future__ import annotations

from lockproviders.testing.suite import LockProviderSuite

__all__ = ["LockProviderSuite"]

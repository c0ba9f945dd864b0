"""
Tables of one kind each: keys, types, evolution, payloads, services. Random ones would miss these.

`walks.py` has the tables at random.
"""

from __future__ import annotations

from tests.interop.unseen.evolution import evolution
from tests.interop.unseen.keys import keys
from tests.interop.unseen.merging import partial, payloads
from tests.interop.unseen.recipe import Recipe
from tests.interop.unseen.services import others, services
from tests.interop.unseen.types import types


def kinds(release: str) -> list[Recipe]:
    """All recipes that a release of Java Hudi can make."""
    makers = (partial, services, payloads, evolution, types, others, keys)
    return [one for make in makers for one in make() if release in one.releases]

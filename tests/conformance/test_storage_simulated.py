"""The simulated storage keeps the storage contract, so what the simulator shows is meant."""

from __future__ import annotations

from timeline.ports.storage import Storage
from timeline.testing.sim_storage import SimStorage
from timeline.testing.storage_suite import StorageSuite
from timeline.testing.world import World


class TestSimStorage(StorageSuite):
    def make_storage(self) -> Storage:
        world = World(scenario="suite")
        return SimStorage(world, world.new_actor("suite", seed=0))

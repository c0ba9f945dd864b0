"""The simulated storage keeps the storage contract, so the simulator's findings are real."""

from __future__ import annotations

from tests.simulator.sim_storage import SimStorage
from tests.simulator.world import SimulatedSystem
from timeline.ports.ports import Storage
from timeline.testing.storage_suite import StorageSuite


class TestSimStorage(StorageSuite):
    def make_storage(self) -> Storage:
        ports = SimulatedSystem(scenario="suite")
        return SimStorage(ports, ports.new_actor("suite", seed=0))

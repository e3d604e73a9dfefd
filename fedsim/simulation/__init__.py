"""Flower's Grid, in the process or on Ray."""

from fedsim.simulation.delivery import node_id_of, partition_of
from fedsim.simulation.grid import ClientAppFactory, SimulatedGrid
from fedsim.simulation.inline import InlineGrid

__all__ = ["ClientAppFactory", "InlineGrid", "SimulatedGrid", "node_id_of", "partition_of"]

"""The engine: plays an ExecutionGraph in simulated time. The only user of SimPy."""

from sim.engine.bounds import bound, critical_path
from sim.engine.play import play
from sim.engine.record import RunRecord

__all__ = ["RunRecord", "bound", "critical_path", "play"]

"""Resumable sweeps over many scenarios: plan, journal, engines, table, search for the best.

Import the modules themselves (``from sim.sweep.runner import run``): ``sim.sweep`` as an attribute is the
public function.
"""

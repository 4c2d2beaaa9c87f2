"""What travels instead of plain gradients, who adds it up and what carries it: tables and size formulas.

Compressors (taxonomy D7), aggregating switches (D10) and transports (D9), one entry each. Nothing here knows
a device, a network or a clock; ``sim.models`` and ``sim.lowering`` turn bytes and operations into time, and
the rules of ``sim.taxonomy`` read the flags.
"""

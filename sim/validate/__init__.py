"""The accuracy board: published training runs, simulated one by one and held against what was measured."""

"""Fitting calibrations to measurements."""

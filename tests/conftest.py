"""What all tests share: hypothesis settings and the catalogue."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from sim.catalog import Catalog, default_catalog

# Continuous integration must not depend on luck: the same examples every time. `HYPOTHESIS_PROFILE=explore`
# looks for new ones.
settings.register_profile(
    "repeatable",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The built-in catalogue."""
    return default_catalog()

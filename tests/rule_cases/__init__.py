"""Strategies that a rule refuses or warns of, one file per file of rules."""

from __future__ import annotations

from tests import data_cases, sync_cases
from tests.rule_cases import (
    batch,
    collective,
    compression,
    degrees,
    network,
    pipeline,
    schedule,
    size,
    state,
    synchronization,
    transfers,
)
from tests.rule_cases.case import Case

_GROUPS = (
    batch,
    collective,
    compression,
    degrees,
    network,
    pipeline,
    schedule,
    size,
    state,
    synchronization,
    transfers,
)
REFUSED = [case for group in _GROUPS for case in group.REFUSED]
REFUSED += [Case(*case) for case in (*sync_cases.REFUSED, *data_cases.REFUSED)]
WARNED = [case for group in _GROUPS for case in group.WARNED]
WARNED += [Case(*case) for case in sync_cases.WARNED]

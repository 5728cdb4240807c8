"""How hard the tests that repeat themselves try: ``UNIFIEDAMP_TEST_EFFORT`` is ``quick``, ``normal`` or ``full``."""

import os

LEVEL = os.environ.get("UNIFIEDAMP_TEST_EFFORT", "normal")
QUICK, FULL = LEVEL == "quick", LEVEL == "full"

FUZZ = int(os.environ.get("UNIFIEDAMP_TEST_FUZZ", {"quick": "50", "full": "10000"}.get(LEVEL, "300")))
"""Inputs that each fuzz test makes up."""

KILLS = int(os.environ.get("UNIFIEDAMP_TEST_KILLS", "200" if FULL else "0"))
"""How often a process that writes checkpoints is killed at random; at each place that matters it dies in any case."""

RANK_KILLS = int(os.environ.get("UNIFIEDAMP_TEST_RANK_KILLS", "40" if FULL else "0"))
"""How often one of several processes that train together is killed at random."""

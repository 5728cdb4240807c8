"""How hard the tests that repeat themselves try: little by default, all the way where CI says so."""

import os

FUZZ = int(os.environ.get("UNIFIEDAMP_TEST_FUZZ", "300"))
"""Inputs that each fuzz test makes up."""

KILLS = int(os.environ.get("UNIFIEDAMP_TEST_KILLS", "20"))
"""How often a process that writes checkpoints is killed."""

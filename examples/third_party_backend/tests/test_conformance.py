"""Runs the conformance suite on this backend."""

from unifiedamp.conformance.suite import *  # noqa: F403

AMP_BACKEND = "jax"

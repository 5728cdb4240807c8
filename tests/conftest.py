"""Registers the toy backend, so that suite and core tests have a backend that needs no framework."""

import toy.registered  # noqa: F401

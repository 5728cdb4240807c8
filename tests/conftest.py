"""Registers the toy backend, so that suite and core tests have a backend that needs no framework."""

import toy.registered  # noqa: F401

from unifiedamp import plugins

#: Folders of tests that only one framework can run, where it is not installed.
collect_ignore = [name for name in ("torch", "tensorflow", "mxnet") if not plugins.is_installed(name)]

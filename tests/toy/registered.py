"""Importing this registers the toy backend in the process (``pytest -p toy.registered``)."""

from unifiedamp.config import plugins

from . import plugin

plugins.register("toy", plugin)

"""Registers the toy backend, so that the suite and the core tests need no framework."""

from toy import plugin as toy_plugin

from unifiedamp import plugins

plugins.register("toy", toy_plugin)

"""Autocast regions, casts, operations, layers and custom functions."""

"""Retired AMP interfaces, each a thin layer over the public one; a module here imports its framework."""

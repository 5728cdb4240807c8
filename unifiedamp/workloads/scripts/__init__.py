"""Runs of a user's own script, as it is: ``unifiedamp compare -- python train.py``."""

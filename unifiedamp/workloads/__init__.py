"""Workloads: a user's model, optimizer, loss and batches, and what trains, compares and tunes them."""

from .definition.protocol import ParityValue, Snapshot, Workload

__all__ = ["ParityValue", "Snapshot", "Workload"]

"""Devices, arrays in and out, prefetching, memory and profiler readings, process-wide switches."""

"""A workload: what it consists of, how a file's is found and checked, and its settings."""

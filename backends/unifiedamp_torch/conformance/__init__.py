"""The conformance harness of this backend."""

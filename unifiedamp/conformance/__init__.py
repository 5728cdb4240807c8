"""The conformance kit: what any backend must mean, as tests that a backend's own harness drives."""

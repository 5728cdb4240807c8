"""Several devices and ranks."""

"""The numerics recorder's part."""

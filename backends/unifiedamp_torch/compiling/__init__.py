"""Whole-step compilation."""

"""Retired mixed-precision interfaces, over the same session: change the import line and the code runs again.

Each module imports its framework; importing this package imports none.
"""

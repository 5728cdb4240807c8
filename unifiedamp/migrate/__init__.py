"""Rewrites code written for the frameworks' own AMP calls, and for Apex, to this package's API. Needs libcst."""

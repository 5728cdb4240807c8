"""Tests with the real libraries that people train inside of; each is skipped where its library is not installed."""

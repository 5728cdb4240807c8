"""Weights, conversion, layer shapes and epsilons."""

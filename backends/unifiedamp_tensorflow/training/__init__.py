"""Preparing, the scaled loss, gradients, master weights, the scaler and the end of a step."""

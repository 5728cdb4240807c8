"""The calls of a training step: their order, interruptions, and the loss scale between steps."""

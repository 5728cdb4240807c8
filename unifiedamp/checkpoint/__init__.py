"""Session state, model weights and the checkpoint file."""

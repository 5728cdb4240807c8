"""The training loop of the commands: progress, history, checkpoints, and what stops and resumes a run."""

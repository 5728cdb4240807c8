"""Training jobs run by the commands: worker processes, comparison, tuning and measurement."""

"""From arguments, environment variables and files to one backend, policy and loss scale."""

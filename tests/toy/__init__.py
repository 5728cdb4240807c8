"""A backend over a small numpy autograd: the plugin path without a framework, and what mutants are made of."""

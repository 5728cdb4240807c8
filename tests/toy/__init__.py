"""A backend over a small numpy autograd: proves the plugin path without a framework, and is what mutants are made of."""

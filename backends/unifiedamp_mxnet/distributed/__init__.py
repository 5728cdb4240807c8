"""Several contexts and workers: which kvstores let them agree, and the sum of their gradients."""

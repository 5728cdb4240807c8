"""Examples: a workload for every framework (``image_classifier.py``), and scripts with loops of their own."""

"""Examples: a workload for every framework (``image_classifier.py``), and scripts with their own loops."""

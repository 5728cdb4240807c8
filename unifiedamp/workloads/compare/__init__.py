"""``unifiedamp compare``: a workload under several backends, policies, compile modes and batch sizes, side by side.

Everything here but ``job.py`` and ``plots.py`` is the parent's: it imports no framework, no numpy and no matplotlib.
"""

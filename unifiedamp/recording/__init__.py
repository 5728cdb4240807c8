"""The numerics recorder: what precision does to each layer's numbers, on recorded steps.

``amp.record(...)`` starts it. Backends return ``unifiedamp.backend.recording``; here are ``counts`` (what counts mean),
``recorder`` (when to record), ``nonfinite_origin`` (where inf or nan came from), ``sinks`` (where records go),
``alerts`` (rules on them), ``what_if`` (formats that are not in use), ``reading``, ``advice``, ``pictures`` and
``page`` (the report), and ``difference`` (of two runs).
"""

from .alerts import Alert, Alerts, Fired
from .sinks import JsonLines, TensorBoard
from .what_if import Lost, lost, recorded

__all__ = ["Alert", "Alerts", "Fired", "JsonLines", "Lost", "TensorBoard", "lost", "recorded"]

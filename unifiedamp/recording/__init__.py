"""The numerics recorder: what precision does to each layer's numbers, on recorded steps.

``amp.record(...)`` starts it. The rooms: ``facts`` (what a backend hands over), ``counts`` (what counts mean),
``recorder`` (when to record), ``blame`` (where inf or nan came from), ``sinks`` (where records go), ``reading``,
``advice``, ``pictures`` and ``page`` (the report).
"""

from .sinks import JsonLines, TensorBoard

__all__ = ["JsonLines", "TensorBoard"]

"""The forecast: what float16, bfloat16 and float8 would do to each layer, from steps in float32 or bfloat16.

``amp.forecast(...)`` starts it. Backends return ``unifiedamp.backend.forecast``; here are ``losses`` (what rounding
does to counted values), ``totals`` (what is added up over steps), ``layers`` and ``choice`` (what follows for layers
and policies), ``forecast`` and ``page`` (the result), ``start`` and ``run`` (a session's part).
"""

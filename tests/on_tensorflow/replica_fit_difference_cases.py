"""Runs of ``fit`` on one device and on two replicas, recorded to be compared; see ``replica_cases``."""

from __future__ import annotations

import numpy as np
from compared_fits import Fit
from compared_runs import BATCHES
from replica_sessions import FITTED, STRATEGY, in_forms

PLANTED = {"eager": ("plain",), "compiled": ("plain", "rate", "data", "gradient", "overflow")}
NATIVE = ("gradient", "reduction")
"""Without a loss scale, where Keras's own optimizer sums the gradients."""


@in_forms(*FITTED)
def case_fit_differences(form):
    with Fit(form, STRATEGY) as replicas:
        found = {case: replicas.records(case) for case in PLANTED[form]}
    if form == "eager":
        with Fit(form) as alone:
            return found | {"alone": alone.records("plain")}
    with Fit(form, STRATEGY, scale="none") as native:
        return found | {f"native {case}": native.records(case) for case in NATIVE}


@in_forms("compiled")
def case_fit_forecast(form):
    """What ``amp.forecast`` says of a step of ``fit`` on one device and on two replicas."""
    found, x = [], np.concatenate(BATCHES)
    for strategy in (None, STRATEGY):
        with Fit(form, strategy) as fit, fit.amp.forecast(steps=1) as counted:
            fit.model.fit(x, np.ones((len(x), 1)), batch_size=8, shuffle=False, verbose=0)
            found.append(str(counted.result()))
    return found

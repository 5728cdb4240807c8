"""What options mean where they are left out, for the help: by parameter, and by command where commands differ."""

from __future__ import annotations

DEFAULTS = {
    "assignments": "the workload's own",
    "backend": "the configuration's, or the only one that is installed",
    "backends": "all that are installed and supported",
    "backend_option": "the script's own",
    "batch_sizes": "the workload's own",
    "compile": "the configuration's, or the script's",
    "config": "none",
    "epochs": "the configuration's, or 1",
    "html": "not written",
    "launcher": "none: this process, or what torchrun and the like have started",
    "loss_scale": "the script's, or the policy's own",
    "max_batch_size": "the samples of an epoch",
    "max_restarts": "0",
    "png": "not written",
    "policies": "float32, and the configuration's or the script's",
    "policy": "the configuration's, or float32",
    "record": "not recorded",
    "steps": "no limit",
    "tensorboard": "not recorded",
    "workers": "1",
    "workload": "required without '--'",
    "compare.out": "runs/compare-NAME",
    "compare.steps": "no limit; of a script 100, or more where they are fast",
    "explain.config": "required without '--'",
    "explain.policy": "the configuration's or the script's, or float32",
    "forecast.formats": "bfloat16,float16,float8",
    "forecast.policy": "the script's own",
    "init.backend": "the only one that is installed",
    "parity.out": "runs/parity-NAME",
    "parity.policies": "float32",
    "record.policy": "the script's own",
    "report.backend": "of a workload: the configuration's, or the only one that is installed",
    "report.html": "not written; of a workload, runs/report-NAME/report.html",
    "train.out": "runs/NAME",
    "tune.out": "NAME.tuned.toml in this folder; of a script, amp.tuned.toml",
    "tune.policies": "the mixed policies that run and gain something here",
}
"""Parameter, or "command.parameter" → the words."""


def default_of(command: str, parameter: str) -> str | None:
    """Return the words; None where the default is a value, which the help shows."""
    return DEFAULTS.get(f"{command}.{parameter}", DEFAULTS.get(parameter))

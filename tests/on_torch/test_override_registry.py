"""Kernels of op overrides are registered and removed, whatever a garbage collection does meanwhile."""

import threading

import pytest

import unifiedamp as ua
from unifiedamp_torch.precision import operations

POLICY = ua.Policy(compute_dtype="bfloat16", op_overrides={"tanh": "float32"})


def test_a_session_that_is_collected_while_another_registers(monkeypatch):
    """Its kernels are removed after those of the other are there: neither waits for the other."""
    first = ua.Amp("torch", POLICY, device="cpu")
    native, seen = operations._register, []

    def register(op, device_type):
        first.close()
        seen.append(("tanh", "cpu") in operations._registry._held)
        return native(op, device_type)

    monkeypatch.setattr(operations, "_register", register)
    thread = threading.Thread(
        target=lambda: ua.Amp("torch", POLICY.replace(op_overrides={"exp": "float32"})), daemon=True
    )
    thread.start()
    thread.join(60)
    if thread.is_alive():
        pytest.fail("it waits for a lock that it holds")
    assert seen == [True]
    assert ("tanh", "cpu") not in operations._registry._held

"""Clipping by the trainers' own arguments, compared with numpy in float64; fused optimizers included."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import probes

GRADIENTS = [(3.0, 4.0), (0.3, -0.4), (float("inf"), 1.0), (30.0, -40.0), (0.0, 2.0)]
LIMITS = {"norm": 1.0, "value": 0.5}


def expected(kind, gradients, lr):
    """The weights after each step."""
    weights, limit, seen = np.ones(2), LIMITS[kind], []
    for each in np.array(gradients, np.float64):
        if np.isfinite(each).all():
            norm = np.sqrt((each**2).sum())
            factor = min(1.0, limit / (norm + 1e-6))
            weights = weights - lr * (each * factor if kind == "norm" else np.clip(each, -limit, limit))
        seen.append(weights)
    return np.array(seen)


CASES = [(host, kind) for host in probes.HOSTS for kind in LIMITS if (host, kind) != ("transformers", "value")]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("host", "kind"), CASES)
def test_true_gradients_are_clipped(host, kind, fused):
    """Lightning #21435: with a fused optimizer too."""

    def sgd(params, lr):
        return torch.optim.SGD(params, lr=lr, fused=fused)

    what = probes.Run(probes.session(loss_scale=1024.0), GRADIENTS, lr=0.5, clip=(kind, LIMITS[kind]), optimizer=sgd)
    ran = probes.run(host, what)
    np.testing.assert_allclose(ran.column("weights"), expected(kind, GRADIENTS, 0.5), rtol=1e-5)
    assert ran.amp.skipped_steps == 1


@pytest.mark.parametrize(("host", "kind"), CASES)
def test_the_mean_of_a_window_is_clipped(host, kind):
    micro = [(6.0, 8.0), (0.0, 0.0), (1.0, 0.0), (-0.4, -0.8), (float("nan"), 0.0), (1.0, 1.0)]
    means = [np.mean(micro[at : at + 2], axis=0) for at in range(0, len(micro), 2)]
    what = probes.Run(probes.session(loss_scale=64.0), micro, lr=0.5, clip=(kind, LIMITS[kind]), accumulate=2)
    ran = probes.run(host, what)
    np.testing.assert_allclose(ran.column("weights"), expected(kind, means, 0.5), rtol=1e-5)


@pytest.mark.parametrize("host", probes.HOSTS)
@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
def test_master_weights_are_clipped(host, policy):
    scale = 16.0 if policy == "float16" else None
    amp = probes.session(policy, master_weights=True, loss_scale=scale)
    what = probes.Run(amp, GRADIENTS[:2], lr=2.0**-9, clip=("norm", 1.0))
    ran = probes.run(host, what)
    wanted = expected("norm", np.array(GRADIENTS[:2]), 2.0**-9)[-1]
    (masters,) = ran.amp.master_weights(ran.model).values()
    np.testing.assert_allclose(masters, wanted, rtol=1e-4)
    assert ran.model.weight.dtype is getattr(torch, policy)

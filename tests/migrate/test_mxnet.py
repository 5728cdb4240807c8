"""mxnet.amp's listings, migrated, give the losses of the same loop without AMP, where nothing is cast.

MXNet casts to float16 on GPUs only, so the session is told float32; the scale, a power of two, stays dynamic
and changes no digit.
"""

from __future__ import annotations

import pytest

import unifiedamp as ua

if not ua.available_backends()["mxnet"].installed:
    pytest.skip("MXNet is not installed", allow_module_level=True)
ua.Amp("mxnet", "float32")  # MXNet needs the layer's help to be imported
from migrating import identifiers, listing, migrated, replaced, run  # noqa: E402

from unifiedamp_mxnet.mxnet_api import NUMPY_API  # noqa: E402

NAMES = ["mxnet2_amp"] if NUMPY_API else ["mxnet_amp", "mxnet_amp_devices"]
# Gradients of the mean against gradients of the sum that the step divides: the same up to float32 rounding, which six
# steps carry on.
SAME = {"rel": 1e-5}
PLAIN = [
    ("from mxnet import amp, autograd" if NUMPY_API else "from mxnet.contrib import amp", "from mxnet import autograd"),
    ("amp.init()", ""),
    ("amp.init_trainer(trainer)", ""),
    ("with amp.scale_loss(loss, trainer) as scaled_loss:", "if True:"),
    ("autograd.backward(scaled_loss)", "autograd.backward(loss)"),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_losses_are_those_of_the_old_code(name):
    text = migrated(listing(name)).after.decode()
    assert not identifiers(text) & {"autograd", "record", "init_trainer", "unscale"}
    more = [("amp.unscale(trainer)", "")] if "devices" in name else []
    old = run(replaced(listing(name), *PLAIN, *more), 6)
    new = run(replaced(text, ('policy="mixed_float16"', 'policy="float32", loss_scale="dynamic"')), 6)
    assert old[-1] != old[0]
    assert new == pytest.approx(old, **SAME)


@pytest.mark.parametrize("name", ["mxnet2_amp", "mxnet_amp", "mxnet_amp_devices"])
def test_a_trainer_of_unknown_make_leaves_all_as_it_is(name):
    text = listing(name).replace("gluon.Trainer(net.collect_params()", "make_trainer(net")
    done = migrated(text)
    assert not done.changed
    (found,) = done.findings
    assert text.splitlines()[found.line - 1].strip() == "amp.init_trainer(trainer)"

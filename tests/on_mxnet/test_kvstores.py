"""Kvstores, sparse gradients, and what a closed session leaves: right, or refused."""

import numpy as np
import pytest
from products import START, Product, product, session, trainer_of

import unifiedamp as ua
from unifiedamp.conformance.driver import settled_state
from unifiedamp.conformance.harness import load_harness
from unifiedamp_mxnet.mxnet_api import NUMPY_API, from_numpy, gluon, mx

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
ONES = np.ones(4, np.float32)
PLAIN = {"policy": "float32", "master_weights": False}


def prepared(kvstore="device", settings=PLAIN, **options):
    amp = session(**settings)
    model = product(contexts=CONTEXTS)
    params, lr = model.collect_params(), {"learning_rate": 0.125}
    return amp, *amp.prepare(model, gluon.Trainer(params, "sgd", lr, kvstore=kvstore, **options))


def feed(amp, model, trainer, inputs):
    with amp.autocast():
        losses = [model(x).sum() for x in inputs]
    with amp.scale_loss(losses, trainer) as scaled:
        scaled.backward()
    return amp.step(trainer)


@pytest.mark.parametrize("as_object", [False, True])
@pytest.mark.parametrize("kind", ["device", "local"])
def test_kvstores_of_one_process_sum(kind, as_object):
    amp, model, trainer = prepared(mx.kv.create(kind) if as_object else kind)
    for count in (1, 2):
        assert feed(amp, model, trainer, [from_numpy(ONES, ctx) for ctx in CONTEXTS]).applied
        for ctx in CONTEXTS:
            np.testing.assert_allclose(model.w.data(ctx).asnumpy(), np.array(START) - 0.25 * count, rtol=1e-6)


@pytest.mark.parametrize("kind", ["dist_async", "dist_device_async"])
def test_asynchronous_kvstores_are_refused(kind):
    with pytest.raises(ua.PrepareError, match="asynchronous kvstore"):
        prepared(kind)


@pytest.mark.parametrize("together", [True, False])
def test_a_second_distributed_trainer_is_refused(together):
    """MXNet hangs in its constructor; nothing is connected before the first step, so no scheduler is needed here."""
    amp = session(**PLAIN)
    models = [product(), product()]
    trainers = [gluon.Trainer(each.collect_params(), "sgd", {}, kvstore="dist_sync") for each in models]
    with pytest.raises(ua.PrepareError, match="2 Trainers have the kvstore 'dist_sync', and MXNet hangs"):
        if together:
            amp.prepare(*models, *trainers)
        else:
            amp.prepare(models[0], trainers[0])
            amp.prepare(models[1], trainers[1])


@pytest.mark.parametrize("library", ["horovod", "byteps"])
def test_other_libraries_of_workers_are_refused_by_name(library):
    with pytest.raises(ua.PrepareError, match=f"{library} sums this Trainer's gradients.*kvstore='dist_sync'"):
        prepared(library)


def test_compressed_gradients_are_refused_under_a_scaler():
    compression = {"type": "2bit", "threshold": 0.5}
    with pytest.raises(ua.PrepareError, match=r"compression_params.*loss_scale='none'"):
        prepared(compression_params=compression)
    prepared(settings=PLAIN | {"loss_scale": "none"}, compression_params=compression)


@pytest.mark.skipif(NUMPY_API, reason="MXNet 2 has no sparse gradients in Gluon")
@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("clip", [None, "clip_grad_norm", "clip_grad_value"])
def test_sparse_gradients(contexts, micro_batches, clip):
    """Oracle: each row of the table loses the learning rate times the share of batches that picked it."""
    amp = session(**PLAIN, accumulate_steps=micro_batches)
    model, used = gluon.nn.Embedding(6, 2, sparse_grad=True), CONTEXTS[:contexts]
    model.initialize(mx.init.One(), ctx=used)
    model, trainer = amp.prepare(model, trainer_of(model, "sgd", 0.125))
    expected = np.ones((6, 2))
    for there in (used, used[:1]):  # the second batch reaches one context alone
        for micro in range(micro_batches):
            rows = [1, 2 + micro]
            with amp.autocast():
                losses = [model(from_numpy(np.array(rows, np.float32), ctx)).sum() for ctx in there]
            with amp.scale_loss(losses, trainer) as scaled:
                scaled.backward()
            if clip:
                getattr(amp, clip)(trainer, 1e6)
            outcome = amp.step(trainer)
            expected[rows] -= 0.125 * len(there) / micro_batches
        assert outcome.applied
    for ctx in used:
        np.testing.assert_allclose(model.weight.data(ctx).asnumpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("bad", [False, True])
def test_weight_decay_and_counts_on_a_skipped_step(bad):
    amp, model = session(**PLAIN), product(contexts=CONTEXTS)
    trainer = gluon.Trainer(model.collect_params(), "adam", {"learning_rate": 0.125, "wd": 0.5})
    model, trainer = amp.prepare(model, trainer)
    assert feed(amp, model, trainer, [from_numpy(ONES, ctx) for ctx in CONTEXTS]).applied
    before = model.w.data().asnumpy()
    counts = {place: dict(each) for place, each in trainer.optimizer._all_index_update_counts.items()}
    feed(amp, model, trainer, [from_numpy(ONES * (np.inf if bad else 1), ctx) for ctx in CONTEXTS])
    assert np.array_equal(model.w.data().asnumpy(), before) is bad
    assert (trainer.optimizer._all_index_update_counts == counts) is bad
    assert trainer.optimizer.num_update == (1 if bad else 2)


@pytest.mark.parametrize("compiled", [False, True])
def test_closing_leaves_nothing(compiled):
    harness, amp = load_harness("mxnet"), session("mixed_bfloat16", master_weights=False)
    model = product(contexts=CONTEXTS)
    trainer = trainer_of(model, "sgd", 0.125)
    trainer.optimizer.rescale_grad = 0.75
    before = settled_state(harness)
    of_trainer, of_optimizer = dict(vars(trainer)), dict(vars(trainer.optimizer))
    of_model = set(vars(model))
    amp.prepare(model, trainer)
    if compiled:
        amp.compile(lambda: None)
    feed(amp, model, trainer, [from_numpy(ONES, ctx) for ctx in CONTEXTS])
    amp.close()
    assert harness.global_state() == before
    assert vars(trainer).keys() == of_trainer.keys()
    assert all(vars(trainer)[name] == of_trainer[name] for name in ("_scale", "_optimizer", "_updaters", "_params"))
    changed = {name for name, value in vars(trainer.optimizer).items() if value is not of_optimizer.get(name)}
    assert changed <= {"num_update", "_index_update_count", "_all_index_update_counts"}
    assert set(vars(model)) - of_model <= {"_cached_op_args"}  # MXNet 2's own, in any hybridized block
    assert type(model) is Product


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_masters_take_no_other_sum_than_float32(dtype):
    """Refused before the first step; in float32 it is what is done anyway."""
    with pytest.raises(ua.PrepareError, match=f"reduce_dtype='{dtype}': with master_weights=True"):
        prepared(settings={"reduce_dtype": dtype})
    amp, model, trainer = prepared(settings={"reduce_dtype": "float32"})
    assert feed(amp, model, trainer, [from_numpy(ONES, ctx) for ctx in CONTEXTS]).applied

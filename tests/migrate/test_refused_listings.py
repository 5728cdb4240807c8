"""Listings in the shapes of public scripts that stay as they are: each for its true reasons, by line."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst")
from migrating import migrated, old_text

WANTED = {
    "all_reduced_inside": {19: "inside amp.scale_loss, where they are still scaled"},
    "averaged_by_wrapper": {13: "SWA(...) is a wrapper around an optimizer, which amp.prepare refuses"},
    "backprop_handed_on": {13: "backprop takes its loss from loss, and is handed on in `self.loop(batches"},
    "bert_accumulate": {21: "no single trainer.step(batch_size)", 24: "part of a step",
                        26: "clip_global_norm([p.grad()",
                        27: "part of a step"},
    "both_apis": {18: "a GradScaler beside apex.amp.initialize", 34: "steps self.optimizer in code that is not here"},
    "cast_by_hand": {10: 'model.to("cpu", torch.float16) casts a prepared model, which the next step refuses',
                     33: "model.half() casts", 35: "model.head.double() casts"},
    "contexts_that_do_something": {27: "autocast under another name",
                                   34: "Swallowed(), which may do something", 36: "quiet(), which may do something"},
    "decorated_forward": {21: "no autocast region where the GradScaler can be seen"},
    "detectron_trainer": {14: "losses.backward(), where the session cannot be seen", 15: "self.optimizer.step()",
                          21: "made under a condition on itself"},
    "enabled_by_a_call": {14: "enable_amp starts AMP and may not be called", 39: "enable_amp starts AMP and may not"},
    "entropy_of_probabilities": {10: "F.binary_cross_entropy(...) in amp.autocast(), which CUDA's autocast forbids",
                                 17: "F.binary_cross_entropy(...) in amp.autocast(), which CUDA's autocast forbids"},
    "features_in_a_bank": {13: "encoder.stem(images) is in no region, and a loss behind it is scaled",
                           15: "encoder(image) is in no region, and a loss behind it is scaled"},
    "flag_too_late": {10: "use_amp is assigned behind the session", 27: "kind is assigned behind the session"},
    "fused_step": {21: "optimizer.fuse_step() steps optimizer past the session"},
    "gated_step": {16: "gradients are unscaled before `if args.should_step(step)`"},
    "given_loss": {16: "_backward takes its loss from loss, which code that is not here gives it"},
    "given_to_be_initialized": {9: "used as a value in `globals()[", 14: "optimizer is not known to be an optimizer",
                                22: "model, which is called there, is not known to be prepared"},
    "gluon_clips_with_amp_alone": {25: "with AMP (if opt.amp) does more than the same step: grads = ["},
    "gluon_horovod": {14: "exchanges gradients by itself", 26: "own scaler", 28: "does more than the same step",
                      31: "part of a step", 32: "clipped while they are scaled", 33: "part of a step"},
    "gradients_of_the_module": {21: "which clears gradients", 22: "which clears gradients",
                                25: "which clears gradients", 26: "which clears gradients"},
    "horovod": {10: "horovod.torch.DistributedOptimizer exchanges gradients by itself"},
    "keras_accumulates": {18: "opt applies totals, in which gradients are accumulated"},
    "keras_accumulates_in_a_class": {21: "gradients_of takes gradients, which other code applies",
                                     28: "self.optimizer.apply_gradients(pairs) applies gradients that other code"},
    "keras_layers_made_late": {21: "self.agent is made of Agent, which is no Keras model"},
    "keras_clips_with_amp_alone": {24: "with AMP (if self.mixed) does more than the same step: gradients, _ ="},
    "keras_logs_its_scale": {27: "the branch without AMP (else of if self.mixed) does more than the same step"},
    "keras_horovod": {18: "exchanges gradients by itself", 20: "top", 21: "second applies gradients that first"},
    "initialized_again": {15: "amp.initialize again under `self.config.fp16`, of what line 19 initializes",
                          19: "amp.initialize again under `\"amp\" in state`, of what line 15 initializes"},
    "larc": {11: "LARC(...) is a wrapper around an optimizer, which amp.prepare refuses"},
    "learner": {14: "self.optimizer is made again here, and not prepared"},
    "left_without_scaler": {44: "run is called with scaler=None", 45: "outer is called with scaler=None",
                            46: "always is called without its scaler", 47: "Keeper is called without its scaler"},
    "local_optimizer_unseen": {26: "optimizer, which this loss trains, is not known in training_step"},
    "module_to_another_file": {11: "apex.amp, Apex's module, is passed to resume, which is not in this file"},
    "module_under_another_name": {12: "amp, Apex's module, is used as a value in `module = amp`"},
    "made_again_beside": {20: "optimizer is made again here, and not prepared"},
    "made_again_in_part": {11: "`optimizer = torch.optim.SGD( net.parameters(), lr=0.01 )` makes an optimizer again"},
    "objectives_in_turn": {20: "optimizer is one of several: optimizer = optimizers[place]"},
    "optimizer_in_a_class": {8: "not clear which models self.optimizer trains",
                             12: "__call__ takes its loss from loss, which code that is not here gives it"},
    "optimizer_list": {11: "may not exist where it is prepared"},
    "optimizer_of_a_helper": {8: "no autocast region where the GradScaler can be seen no line that makes optimizer"},
    "optimizers_of_a_model": {25: "optimizer is one of several: for optimizer in optimizers"},
    "persistent_gradients": {17: "which clears gradients"},
    "processes_of_a_trainer": {17: "mp.spawn pickles self.fit_on, and with it the session that Trainer keeps"},
    "scaled_by_hand": {14: "loss * opt.loss_scale scales the loss by hand"},
    "scaler_of_callbacks": {14: "passed to Attributes", 21: "passed to self.optimizers.scaler_step"},
    "sharpness_aware": {29: "unscaled before, and does not step in between"},
    "started_by_a_call": {19: "to_fp16 starts AMP and may not be called: losses go backward without it too"},
    "started_by_a_function": {8: "start_amp starts AMP and may not be called: losses go backward without it too"},
    "stepped_elsewhere": {26: "steps self.optimizer in code that is not here"},
    "swin": {33: "after each micro-batch", 35: "after each micro-batch", 39: "after each micro-batch",
             41: "after each micro-batch"},
    "timm_script": {14: "no line that makes optimizer", 17: "create_graph=create_graph", 33: "loss.backward(), where",
                    35: "clip_grad_norm_", 36: "optimizer.step(), where", 46: "torch.autocast under another name"},
    "traced": {8: "nothing here computes with model in a region"},
    "unclear_models": {7: "not clear which models optimizer_a and optimizer_b train"},
    "train_step_accumulates": {20: "applies other gradients than those"},
}  # fmt: skip


@pytest.mark.parametrize("name", WANTED)
def test_refused_for_its_true_reasons(name):
    done = migrated(old_text(f"refused/{name}"))
    assert not done.changed, done.diff()
    found: dict[int, str] = {}
    for one in done.findings:
        if one.blocks:
            found[one.line] = f"{found.get(one.line, '')} {one.what}"
    assert set(found) == set(WANTED[name])
    assert {line: found[line] for line, what in WANTED[name].items() if what not in found[line]} == {}


def test_a_cast_of_a_model_that_was_moved_in_the_call_is_refused_too():
    done = migrated(
        """import torch
from apex import amp

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
model, optimizer = amp.initialize(model.cpu(), optimizer, opt_level="O1")
for x, y in [(torch.ones(3, 4), torch.ones(3, 2))] * 2:
    loss = (model(x) - y).square().mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    model.half()
"""
    )
    (found,) = [one for one in done.findings if one.blocks]
    assert found.line == 12
    assert "model.half() casts a prepared model" in found.what

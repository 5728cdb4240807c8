"""Listings in the shapes of public scripts that stay as they are: each for its true reasons, by line."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst")
from migrating import migrated, old_text

WANTED = {
    "all_reduced_inside": {19: "inside amp.scale_loss, where they are still scaled"},
    "bert_accumulate": {21: "no single trainer.step(batch_size)", 24: "part of a step",
                        26: "clip_global_norm([p.grad()",
                        27: "part of a step"},
    "both_apis": {18: "a GradScaler beside apex.amp.initialize", 34: "steps self.optimizer in code that is not here"},
    "decorated_forward": {21: "no autocast region where the GradScaler can be seen"},
    "detectron_trainer": {14: "losses.backward(), where the session cannot be seen", 15: "self.optimizer.step()",
                          21: "made under a condition on itself"},
    "fused_step": {21: "optimizer.fuse_step() steps optimizer past the session"},
    "gated_step": {16: "gradients are unscaled before `if args.should_step(step)`"},
    "given_loss": {16: "_backward takes its loss from loss, which code that is not here gives it"},
    "gluon_horovod": {14: "exchanges gradients by itself", 26: "own scaler", 28: "does more than the same step",
                      31: "part of a step", 32: "clipped while they are scaled", 33: "part of a step"},
    "horovod": {10: "horovod.torch.DistributedOptimizer exchanges gradients by itself"},
    "keras_accumulates": {18: "opt applies totals, in which gradients are accumulated"},
    "keras_horovod": {18: "exchanges gradients by itself", 20: "top", 21: "second applies gradients that first"},
    "learner": {14: "self.optimizer is made again here, and not prepared"},
    "local_optimizer": {24: "optimizer, which this loss trains, is not known in training_step"},
    "objectives_in_turn": {20: "optimizer is one of several: optimizer = optimizers[place]"},
    "optimizer_list": {11: "may not exist where it is prepared"},
    "optimizers_of_a_model": {25: "optimizer is one of several: for optimizer in optimizers"},
    "persistent_gradients": {17: "which clears gradients"},
    "scaled_by_hand": {15: "loss * opt.loss_scale scales the loss by hand"},
    "sharpness_aware": {29: "unscaled before, and does not step in between"},
    "stepped_elsewhere": {26: "steps self.optimizer in code that is not here"},
    "swin": {33: "after each micro-batch", 35: "after each micro-batch", 39: "after each micro-batch",
             41: "after each micro-batch"},
    "timm_script": {14: "no line that makes optimizer", 17: "create_graph=create_graph", 33: "loss.backward(), where",
                    35: "clip_grad_norm_", 36: "optimizer.step(), where", 46: "torch.autocast under another name"},
    "traced": {8: "nothing here computes with model in a region"},
    "unet_histograms": {20: "which clears gradients"},
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

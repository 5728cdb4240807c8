"""Mixed-precision training with each framework's own API, without unifiedamp: the reference of the benchmarks.

Each module has the same functions, written in the framework's usual style:

- ``gpu()``: the framework's description of its GPU, None on a CPU; ``low()``: the recommended mixed policy,
  "mixed_float16" on a GPU and "mixed_bfloat16" on a CPU.
- ``begin()``: clear compilation caches of earlier rows; ``clear()``: free memory.
- ``tensor(array)``: a batch on the device; ``scope(policy)``: context in which the model is created; ``around()``:
  context of each turn; ``finish()``: synchronize with the device; ``number(loss)``: a loss as a float.
- ``memory(run)``: bytes of device memory (see ``race.Standing``) while ``run`` runs some steps; empty on a CPU.
- ``train_step(model, optimizer, loss_fn, scale, compiled, policy)``: a function that trains one step on a batch, with
  the framework's dynamic loss scaling starting at ``scale``, or without it. ``compiled`` is False, True (the
  framework's usual compiler for a whole step) or a mode named in the module.
"""

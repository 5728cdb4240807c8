"""Mixed precision by each framework's own means, without unifiedamp: the yardstick of the other scripts.

Each module has the same functions, written as someone who knows that framework would write them:

- ``gpu()``: what the framework says about its GPU, None on a CPU; ``low()``: the mixed policy that this device does
  best, "mixed_float16" on a GPU and "mixed_bfloat16" on a CPU.
- ``begin()``: forget what was compiled for earlier rows; ``clear()``: give memory back.
- ``tensor(array)`` makes a batch on the device; ``scope(policy)`` is entered while the model is made; ``around()`` is
  entered for each turn; ``finish()`` waits for the device; ``number(loss)`` is its value.
- ``memory(run)``: bytes of device memory (see ``race.Standing``), ``run`` being some steps; empty on a CPU.
- ``train_step(model, optimizer, loss_fn, scale, compiled, policy)``: a function of a batch that trains one step, with
  the framework's own dynamic loss scale from ``scale`` on, or without one. ``compiled`` is False, True (the framework's
  usual way for a whole step) or a way of the framework's own that the module names.
"""

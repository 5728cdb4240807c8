"""Mixed precision by each framework's own means, without unifiedamp: the yardstick of ``overhead.py``.

Each module has the same functions, written as someone who knows that framework would write them:
``tensor(array)`` makes a batch; ``scope()`` is entered while the model is made; ``finish()`` waits for the device;
``around()`` is entered for each turn; and ``train_step(model, optimizer, loss_fn, scaled, compiled)`` returns a
function of a batch that trains one step under mixed bfloat16, with the framework's own dynamic loss scale where
``scaled``.
"""

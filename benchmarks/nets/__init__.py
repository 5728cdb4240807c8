"""Models larger than the examples', one module per backend, all with the same functions.

``make_model(recipe)``, ``make_optimizer(model, kind, rate, momentum)`` and ``loss_fn(recipe)``; and ``IMAGE_AXES``, the
order in which it wants the axes of an NHWC batch. torch's are written out here, so that no other library is needed;
TensorFlow's and MXNet's are the framework's own.
"""

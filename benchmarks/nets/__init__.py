"""Models larger than those of the examples, one module per backend with the same functions.

``make_model(recipe)``, ``make_optimizer(model, kind, form, rate, momentum)``, ``loss_fn(recipe)``, and ``IMAGE_AXES``,
the permutation of the axes of an NHWC batch. torch's models are defined here, so that no other library is needed;
TensorFlow's and MXNet's come with the framework.
"""

"""What layers compute in bfloat16, in numpy."""

import numpy as np


def low(value):
    """Round to bfloat16, in numpy: the oracle of what a cast does."""
    bits = np.asarray(value, np.float32).view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def dense(x, weight, bias, cast):
    """One layer in float64, inputs and result rounded when it computes in bfloat16."""
    if not cast:
        return x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    return low(low(x).astype(np.float64) @ low(weight).T.astype(np.float64) + low(bias))

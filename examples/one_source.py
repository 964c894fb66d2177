"""A task written once for NumPy, torch and JAX, with a kernel for devices that take kernels instead of Python."""

import numpy as np

import hetero

SOURCE = """
__kernel void swish(__global const float *x, __global float *y) {
    int i = get_global_id(0);
    y[i] = x[i] / (1.0f + exp(-x[i]));
}
"""


@hetero.task
def swish(x: np.ndarray) -> np.ndarray:
    """Compute x / (1 + exp(-x)) with the arrays of whatever device runs this."""
    xp = hetero.namespace()
    x = xp.asarray(x)
    return x / (1 + xp.exp(-x))


swish.implementation(
    "opencl",
    hetero.Kernel(SOURCE, "swish", out=lambda x: (x.shape, x.dtype), global_size=lambda x: (x.size,)),
)

x = np.linspace(-4, 4, 1 << 16, dtype=np.float32)
expected = x / (1 + np.exp(-x))
for device in hetero.get_device_list():
    with hetero.Context(devices=[{"type": device.short.partition(":")[0], "id": device.id}]) as ctx:
        try:
            error = np.abs(np.asarray(ctx.run(swish, x)) - expected).max()
        except hetero.errors.NothingFitsError:
            print(f"{device.short}: has no code for this task")
        else:
            print(f"{device.short}: largest difference to NumPy {error:.0e}")

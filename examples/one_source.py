"""A task written once for NumPy, torch and JAX, with kernels for devices that take kernels instead of Python."""

import numpy as np

import hetero

OPENCL = """
__kernel void swish(__global const float *x, __global float *y) {
    int i = get_global_id(0);
    y[i] = x[i] / (1.0f + exp(-x[i]));
}
"""

WGSL = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn swish(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&x)) { y[id.x] = x[id.x] / (1.0 + exp(-x[id.x])); }
}
"""


@hetero.task
def swish(x: np.ndarray) -> np.ndarray:
    """Compute x / (1 + exp(-x)) with the arrays of whatever device runs this."""
    xp = hetero.tasks.namespace()
    x = xp.asarray(x)
    return x / (1 + xp.exp(-x))


for word, source in (("opencl", OPENCL), ("vulkan", WGSL)):
    swish.implementation(
        word, hetero.tasks.Kernel(source, "swish", out=lambda x: (x.shape, x.dtype), global_size=lambda x: (x.size,))
    )

x = np.linspace(-4, 4, 1 << 16, dtype=np.float32)
expected = x / (1 + np.exp(-x))
for device in hetero.inspect.get_device_list():
    with hetero.Context(devices=[{"type": device.short.partition(":")[0], "id": device.id}]) as ctx:
        error = np.abs(np.asarray(ctx.run(swish, x)) - expected).max()
        print(f"{device.short}: largest difference to NumPy {error:.0e}")

"""What needs Python is refused, before it is submitted, by a fleet that takes kernels only."""

from __future__ import annotations

import pytest

import hetero
from hetero.errors import NothingFitsError
from tests.needs import need


@pytest.mark.parametrize("kind", ["opencl", "vulkan"])
def test_a_plain_function_is_refused_by_a_fleet_of_kernel_devices(kind: str) -> None:
    need(kind)
    refusal = rf"no device can run len: h0/{kind}:0: the task has no kernel for it"
    with hetero.Context(devices=f"{kind}:1", history=False) as ctx, pytest.raises(NothingFitsError, match=refusal):
        ctx.submit(len, [1])

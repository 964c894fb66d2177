"""Every back end of the registry keeps the promises of the interface, on whatever devices are here."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from hetero.backends import registry
from hetero.backends.base import Backend, Found
from hetero.model.device import Device
from hetero.testing import check_backend
from tests.needs import PARTS, need


@pytest.mark.parametrize("name", registry.names())
def test_every_registered_back_end_conforms(name: str) -> None:
    if name in PARTS:
        need(name)
    check_backend(name)


@pytest.mark.parametrize("name", ["cpu", "null", "torch", "jax"])
def test_back_ends_of_this_environment_find_a_sound_device(name: str) -> None:
    assert any(found.device and not found.reason for found in registry.load(name).probe())


def _sound(name: str) -> Backend:
    device = next(found.device for found in registry.load(name).probe() if found.device and not found.reason)
    return registry.backend_of(device)


@pytest.mark.parametrize("name", ["cpu", "torch"])
def test_thread_limits_are_as_before_when_the_last_of_several_devices_closes(name: str) -> None:
    import torch

    def state() -> tuple[list[tuple[str, int]], int]:
        return sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info()), torch.get_num_threads()

    one, other = _sound(name), _sound(name)
    before = state()
    one.open()
    other.open()
    one.close()
    other.close()
    assert state() == before


def test_numpy_and_torch_share_bytes_with_the_host_also_where_they_are_read_only() -> None:
    locked = np.arange(1000.0)
    locked.flags.writeable = False
    for name in ("cpu", "torch"):
        backend = _sound(name)
        backend.open()
        there = backend.copy_in(locked)
        view = backend.as_buffer(there)
        assert view is not None, name
        assert np.shares_memory(view, locked), name
        backend.close()


def test_jax_keeps_64_bit_types_and_leaves_its_settings_alone() -> None:
    import jax

    before = jax.config.jax_enable_x64
    backend = _sound("jax")
    backend.open()
    with backend.activate():
        assert backend.namespace().zeros(3).dtype == np.float64
        there = backend.copy_in(np.arange(3, dtype=np.int64))
    assert backend.copy_out(there).dtype == np.int64
    assert jax.config.jax_enable_x64 == before
    backend.close()


class _BrokenProbe(registry.load("null")):  # type: ignore[misc]
    @classmethod
    def _probe(cls) -> list[Found]:
        raise KeyError("ROCM_HOME\nis not set")


def test_a_probe_that_raises_is_a_reason_of_one_line() -> None:
    (found,) = _BrokenProbe.probe()
    assert found.device is None
    assert found.reason == "KeyError: 'ROCM_HOME\\nis not set'"


class _Liar(registry.load("cpu")):  # type: ignore[misc]
    def _copy_out(self, array: object) -> object:
        return np.asarray(array) + 1


def test_the_kit_finds_a_back_end_that_copies_wrongly() -> None:
    device: Device = next(found.device for found in registry.load("cpu").probe() if found.device)
    with pytest.raises(AssertionError, match="comes back"):
        check_backend(_Liar, device)


def test_running_out_of_memory_is_recognised_on_each_framework() -> None:
    import torch

    for name, ask in (("cpu", lambda: np.empty(10**15)), ("torch", lambda: torch.empty(10**15))):
        backend = _sound(name)
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            ask()
        assert backend.is_out_of_memory(caught.value), name
    backend = _sound("jax")
    backend.open()
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED") as caught:
        backend.namespace().zeros(10**14, dtype="float32").block_until_ready()
    assert backend.is_out_of_memory(caught.value)
    backend.close()


def test_a_generator_of_the_host_fills_tensors_of_the_host_where_new_ones_are_the_devices() -> None:
    torch = pytest.importorskip("torch")
    from hetero.backends.torch import _new_tensors

    generator = torch.Generator()
    with _new_tensors()(torch.device("meta")):
        assert torch.get_default_device().type == "meta"
        assert torch.zeros(3).device.type == "meta"
        assert torch.rand(3).device.type == "meta"
        assert torch.randperm(5, generator=generator).device.type == "cpu"
        assert sorted(torch.randperm(5, generator=generator).tolist()) == [0, 1, 2, 3, 4]
        assert torch.rand(3, generator=generator).device.type == "cpu"
        assert torch.rand(3, device="cpu").device.type == "cpu"
    assert torch.zeros(3).device.type == "cpu"

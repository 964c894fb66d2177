"""Topologies: what a matrix, the kernel and a file tell, and the way between any two parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hetero
from hetero.backends.nvidia import GpuReading, NvLink
from hetero.backends.topology import Rates, from_matrix, is_matrix
from hetero.backends.topology_files import FORMAT, as_document, from_document, read_text, read_topology
from hetero.backends.topology_system import fabric_here, from_system
from hetero.floor.errors import BadValueError, GraphError
from hetero.model.device import Device, DeviceType
from hetero.model.fabric import Fabric, FabricPart, Wire
from tests.matrices import DGX1_V100, DGX_A100, TWO_BRIDGED, TWO_CONSUMER


def test_a_bridge_of_four_nvlinks_has_four_times_the_rate_of_one() -> None:
    fabric = from_matrix(TWO_BRIDGED, rates=Rates(nvlink=14e9))
    assert fabric.path("cuda:0", "cuda:1").bytes_per_s == 56e9
    assert fabric.nvlinked("cuda:0", "cuda:1")


def test_cards_without_nvlink_meet_at_the_host_bridge() -> None:
    way = from_matrix(TWO_CONSUMER).path("cuda:0", "cuda:1")
    assert way.hops == 2
    assert way.kinds == ("pcie",)


def test_twelve_links_to_each_of_seven_peers_mean_a_switch_and_not_eighty_four_links() -> None:
    fabric = from_matrix(DGX_A100)
    way = fabric.path("h0/cuda:0", "h0/cuda:7")
    assert way.parts == ("h0/cuda:0", "h0/nvswitch", "h0/cuda:7")
    assert way.bytes_per_s == 12 * 25e9


def test_six_links_to_several_peers_are_wires_between_pairs() -> None:
    fabric = from_matrix(DGX1_V100)
    assert fabric.path("cuda:0", "cuda:3").bytes_per_s == 50e9
    assert fabric.path("cuda:0", "cuda:4").hops == 1
    assert not fabric.nvlinked("cuda:0", "cuda:7")
    assert "smp" in fabric.path("cuda:0", "cuda:7").kinds


def test_a_network_card_tells_which_gpus_share_its_pcie_switch() -> None:
    fabric = from_matrix(DGX_A100)
    assert fabric.place("cuda:0", "pcie") == fabric.place("cuda:1", "pcie") != fabric.place("cuda:2", "pcie")
    assert fabric.path("h0/mlx5_2", "cuda:4").kinds == ("pcie",)


def test_numa_nodes_are_those_that_the_matrix_names() -> None:
    fabric = from_matrix(DGX_A100)
    assert [fabric.part(f"cuda:{at}").numa for at in range(8)] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert fabric.part("mlx5_3").numa == 5
    assert fabric.place("cuda:6", "numa") == "h0/numa:5"


def test_colours_of_a_terminal_do_not_hide_the_matrix() -> None:
    assert "\x1b" in TWO_CONSUMER
    assert is_matrix(TWO_CONSUMER)
    assert not is_matrix("parts: []")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace("NV4", "NVx"), "'NVx' in the row of GPU0 is no connection"),
        (lambda text: "\n".join(line for line in text.splitlines() if not line.startswith("GPU1")), "no row for GPU1"),
        (lambda text: text.replace("\tNV4\t0-15\t0\tN/A", ""), "the row of GPU0 has 1 cells of 2"),
        (lambda text: "\n".join(text.splitlines()[1:]), "no line of column names"),
    ],
)
def test_a_damaged_matrix_is_told_with_the_row(change: Callable[[str], str], told: str) -> None:
    with pytest.raises(BadValueError, match=told):
        from_matrix(change(TWO_BRIDGED))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda text: text.replace("NV4", "SYS", 1),
            "the matrix says SYS from GPU0 to GPU1, and NV4 from GPU1 to GPU0",
        ),
        (lambda text: text.replace("NV4", "X", 1), "the matrix says X from GPU0 to GPU1"),
        (lambda text: text.replace("NV4", "X"), "the matrix says X from GPU0 to GPU1, and X from"),
        (lambda text: text.replace("NV4\t X ", "NV4\tPIX"), "the matrix joins GPU1 with itself by 'PIX'"),
    ],
)
def test_a_matrix_that_contradicts_itself_is_refused(change: Callable[[str], str], told: str, tmp_path: Path) -> None:
    text = change("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n")
    _file(tmp_path / "topo.txt", text)
    with pytest.raises(GraphError, match=told) as caught:
        read_topology([tmp_path / "topo.txt"])
    assert "\n" not in str(caught.value)


def test_two_hosts_reach_each_other_only_over_a_network_that_was_named(tmp_path: Path) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file in files:
        file.write_text(DGX_A100)
    apart = read_topology(files)
    with pytest.raises(BadValueError, match="no links lead from h0/cuda:0 to h1/cuda:0"):
        apart.path("h0/cuda:0", "h1/cuda:0")
    together = read_topology(files, network_bytes_per_s=25e9)
    assert together.path("h0/cuda:0", "h1/cuda:0").bytes_per_s == 25e9


def test_a_gpu_of_the_catalog_gives_the_rates(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(DGX_A100)
    fabric = read_topology([file], gpu="A100-SXM-80GB")
    way = fabric.path("cuda:0", "cuda:1")
    assert way.bytes_per_s == 300e9
    assert {wire.origin for wire in way.wires} == {"catalog"}


def test_a_topology_that_was_written_reads_back_the_same() -> None:
    fabric = from_matrix(DGX1_V100, name="V100")
    assert from_document(as_document(fabric), "t") == fabric


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ({"from": "a", "to": "x", "bandwidth": "1GB/s"}, r"t: links\[0\].to: no part is called 'x'"),
        ({"from": "a", "to": "b", "bandwidth": "0GB/s"}, r"bandwidth is '0GB/s'; it must be above 0"),
        ({"from": "a", "to": "b", "bandwidth": "1GB"}, "no known unit"),
        ({"from": "a", "to": "a", "bandwidth": "1GB/s"}, "'a' is linked with itself"),
        ({"from": "a", "to": "b", "bandwith": "1GB/s"}, "did you mean 'bandwidth'"),
        ({"from": "a", "to": "b", "kind": "nvlnk", "bandwidth": "1GB/s"}, "did you mean 'nvlink'"),
        (["a", "b"], "is no mapping"),
    ],
)
def test_a_wrong_link_is_told_with_its_place(link: object, told: str) -> None:
    parts = [{"id": "a"}, {"id": "b"}]
    with pytest.raises(GraphError, match=told):
        from_document({"format": FORMAT, "parts": parts, "links": [link]}, "t")


def test_a_file_that_is_neither_is_told_what_it_could_be() -> None:
    with pytest.raises(GraphError, match="hetero-topology/1"):
        read_text("hello", "t.txt")
    with pytest.raises(GraphError, match=r"t.txt:2: this is not YAML"):
        read_text("a: 1\nb: [", "t.txt")


def test_bytes_do_not_pass_through_another_device() -> None:
    parts = tuple(FabricPart(name, "device") for name in "abc")
    fabric = Fabric(parts, (Wire("a", "b", "nvlink", 1e9), Wire("b", "c", "nvlink", 1e9)))
    with pytest.raises(BadValueError, match="no links lead from a to c"):
        fabric.path("a", "c")
    assert not fabric.nvlinked("a", "c")


def test_of_equally_wide_ways_the_shorter_is_taken_even_where_a_wider_one_begins() -> None:
    parts = (FabricPart("a", "device"), FabricPart("b", "device"), *(FabricPart(name, "switch") for name in "xyz"))
    wide = [Wire("a", "x", "pcie", 9e9), Wire("x", "y", "pcie", 9e9), Wire("y", "z", "pcie", 9e9)]
    fabric = Fabric(parts, (*wide, Wire("a", "z", "pcie", 5e9), Wire("z", "b", "pcie", 4e9)))
    assert fabric.path("a", "b").parts == ("a", "z", "b")


def _file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _system(root: Path) -> None:
    """Two GPUs and an InfiniBand card on one switch of node 1, a third GPU alone on node 0."""
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    places = {
        "0000:80:00.0": ("pci0000:80", ("0000:80:01.0",), 1, 0x10DE),
        "0000:81:00.0": ("pci0000:80", ("0000:80:01.0",), 1, 0x10DE),
        "0000:82:00.0": ("pci0000:80", ("0000:80:01.0",), 1, 0x15B3),
        "0000:01:00.0": ("pci0000:00", ("0000:00:01.0",), 0, 0x10DE),
    }
    for address, (domain, bridges, node, vendor) in places.items():
        folder = root / "sys/devices" / domain
        for bridge in bridges:
            folder /= bridge
            _file(folder / "max_link_speed", "16.0 GT/s PCIe\n")
            _file(folder / "max_link_width", "16\n")
        folder /= address
        _file(folder / "class", "0x030200\n" if vendor == 0x10DE else "0x020700\n")
        _file(folder / "vendor", f"{vendor:#06x}\n")
        _file(folder / "device", "0x2330\n")
        _file(folder / "numa_node", f"{node}\n")
        _file(folder / "max_link_speed", "8.0 GT/s PCIe\n")
        _file(folder / "max_link_width", "16\n")
        (bus / address).symlink_to(folder)
    card = root / "sys/class/infiniband/mlx5_0"
    _file(card / "ports/1/rate", "200 Gb/sec (4X HDR)\n")
    (card / "device").symlink_to((bus / "0000:82:00.0").resolve())
    for node in range(2):
        (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)


def test_the_kernel_tells_switches_slots_numa_nodes_and_infiniband(tmp_path: Path) -> None:
    _system(tmp_path)
    fabric = from_system(tmp_path)
    assert [part.id for part in fabric.devices if part.pci] == ["h0/cuda:0", "h0/cuda:1", "h0/cuda:2"]
    assert [fabric.part(f"cuda:{at}").numa for at in range(3)] == [0, 1, 1]
    shared = fabric.path("cuda:1", "cuda:2")
    assert shared.parts == ("h0/cuda:1", "h0/pci:0000:80:01.0", "h0/cuda:2")
    assert shared.bytes_per_s == pytest.approx(15.76e9)
    assert fabric.path("cuda:1", "mlx5_0").hops == 2
    assert fabric.part("mlx5_0").name == "200 Gb/s"
    assert fabric.path("cuda:0", "cuda:1").kinds == ("pcie", "smp")


def test_nvlinks_come_from_the_management_library(tmp_path: Path) -> None:
    _system(tmp_path)
    pair = ("00000000:80:00.0", "00000000:81:00.0")
    gpus = [
        GpuReading("GPU", pair[0], nvlinks=(NvLink(4, pair[1]), NvLink(4, pair[1]))),
        GpuReading("GPU", pair[1], nvlinks=(NvLink(4, pair[0]), NvLink(4, pair[0]))),
    ]
    fabric = from_system(tmp_path, gpus)
    assert fabric.path("cuda:1", "cuda:2").bytes_per_s == 50e9
    assert len([wire for wire in fabric.wires if wire.kind == "nvlink"]) == 1


def test_devices_are_found_by_their_address_whatever_number_their_runtime_gives_them(tmp_path: Path) -> None:
    _system(tmp_path)
    for cpu in (0, 1):
        (tmp_path / f"sys/devices/system/node/node{cpu}/cpu{cpu}").mkdir()
    devices = [
        Device(f"h0/cuda:{index}", "cuda", DeviceType("GPU"), "torch", index, silicon=(f"h0/pci:{address}",))
        for index, address in enumerate(("0000:81:00.0", "0000:01:00.0"))
    ]
    devices += [Device(f"h0/cpu:{n}", "cpu", DeviceType("CPU"), "cpu", n, cpus=(n,)) for n in (0, 1)]
    devices += [Device("h1/cuda:0", "cuda", DeviceType("GPU"), "torch")]
    fabric = fabric_here(devices, tmp_path, ())
    numa = {part.id: part.numa for part in fabric.devices}
    assert numa == {"h0/cuda:0": 1, "h0/cuda:1": 0, "h0/cuda:1@0000:80:00.0": 1, "h0/cpu:0": 0, "h0/cpu:1": 1}
    assert fabric.place("h0/cuda:0", "pcie") == "h0/pci:0000:80:01.0"
    assert fabric.path("h0/cuda:1", "h0/cpu:0").hops == 2


def test_what_topology_gives_answers_for_any_two_parts(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(DGX1_V100)
    fabric = hetero.cluster.topology(file)
    assert fabric.nvlinked("h0/cuda:0", "h0/cuda:3")
    assert hetero.collectives.best_group(fabric, 2).bytes_per_s == 50e9
    assert hetero.cluster.topology().devices


def test_an_empty_system_has_one_numa_node_and_its_processor(tmp_path: Path) -> None:
    fabric = from_system(tmp_path)
    assert [part.id for part in fabric.parts] == ["h0/cpu:0", "h0/numa:0"]


def test_links_between_devices_go_to_the_scheduler_as_it_takes_them() -> None:
    links = from_matrix(TWO_BRIDGED).links()
    assert {(link.src, link.dst, link.kind) for link in links} == {
        ("h0/cuda:0", "h0/cuda:1", "nvlink"),
        ("h0/cuda:1", "h0/cuda:0", "nvlink"),
    }


@pytest.mark.parametrize("value", [None, "1GB", True, -1, float("nan")])
def test_a_memory_node_or_a_link_without_a_number_is_refused(value: object) -> None:
    for make in (
        lambda: hetero.graphs.MemoryNode("m", value),  # type: ignore[arg-type]
        lambda: hetero.graphs.Link("a", "b", value, 1e9),  # type: ignore[arg-type]
        lambda: hetero.graphs.Link("a", "b", 1e-5, value),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadValueError, match=rf"is {value!r}, which is not allowed; give (bytes|seconds)"):
            make()
    with pytest.raises(BadValueError, match=r"bandwidth_bytes_per_s of the link from 'a' to 'b' is 0, .* above 0"):
        hetero.graphs.Link("a", "b", 0.0, 0)

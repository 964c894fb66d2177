"""What `nvidia-smi topo -m` prints on hosts of known build, written from the way their parts are wired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["DGX1_V100", "DGX_A100", "TWO_BRIDGED", "TWO_CONSUMER", "matrix"]

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def matrix(rows: Mapping[str, str], affinity: Sequence[str], nics: Sequence[str] = (), escapes: bool = False) -> str:
    """Write a matrix: rows of words, then CPU and NUMA affinity of each GPU, then what the NICs are called."""
    names = list(rows)
    head = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\x1b[4m{head}\x1b[0m" if escapes else head]
    for at, (name, cells) in enumerate(rows.items()):
        tail = [affinity[at], "N/A"] if at < len(affinity) else ["", ""]
        lines.append("\t".join([name, *(f" {cell} " if cell == "X" else cell for cell in cells.split()), *tail]))
    text = "\n".join(lines) + "\n" + _LEGEND
    if nics:
        text += "\nNIC Legend:\n\n" + "\n".join(f"  NIC{at}: {nic}" for at, nic in enumerate(nics)) + "\n"
    return text


TWO_BRIDGED = matrix({"GPU0": "X NV4", "GPU1": "NV4 X"}, ["0-15\t0", "0-15\t0"])
"""Two cards with a bridge of four NVLinks."""

TWO_CONSUMER = matrix({"GPU0": "X PHB", "GPU1": "PHB X"}, ["0-63\t0\t", "0-63\t0\t"], escapes=True)
"""Two cards without NVLink on one processor."""

DGX1_V100 = matrix(
    {
        "GPU0": "X NV1 NV1 NV2 NV2 SYS SYS SYS PIX SYS",
        "GPU1": "NV1 X NV2 NV1 SYS NV2 SYS SYS PIX SYS",
        "GPU2": "NV1 NV2 X NV2 SYS SYS NV1 SYS PHB SYS",
        "GPU3": "NV2 NV1 NV2 X SYS SYS SYS NV1 PHB SYS",
        "GPU4": "NV2 SYS SYS SYS X NV1 NV1 NV2 SYS PIX",
        "GPU5": "SYS NV2 SYS SYS NV1 X NV2 NV1 SYS PIX",
        "GPU6": "SYS SYS NV1 SYS NV1 NV2 X NV2 SYS PHB",
        "GPU7": "SYS SYS SYS NV1 NV2 NV1 NV2 X SYS PHB",
        "mlx5_0": "PIX PIX PHB PHB SYS SYS SYS SYS X SYS",
        "mlx5_1": "SYS SYS SYS SYS PIX PIX PHB PHB SYS X",
    },
    [f"{20 * (at // 4)}-{20 * (at // 4) + 19}\t{at // 4}" for at in range(8)],
)
"""Eight V100 in a cube of NVLinks, six links each, two processors."""


def _dgx_a100() -> str:
    nodes = (3, 3, 1, 1, 7, 7, 5, 5)
    rows = {}
    for one in range(8):
        gpus = ["X" if one == other else "NV12" for other in range(8)]
        nics = ["PXB" if nic == one // 2 else "SYS" for nic in range(4)]
        rows[f"GPU{one}"] = " ".join([*gpus, *nics])
    for nic in range(4):
        gpus = ["PXB" if one // 2 == nic else "SYS" for one in range(8)]
        nics = ["X" if nic == other else "SYS" for other in range(4)]
        rows[f"NIC{nic}"] = " ".join([*gpus, *nics])
    affinity = [f"{16 * node}-{16 * node + 15}\t{node}" for node in nodes]
    return matrix(rows, affinity, [f"mlx5_{nic}" for nic in range(4)])


DGX_A100 = _dgx_a100()
"""Eight A100 on six NVSwitches, twelve links each, a pair and a network card on each tree of PCIe switches."""

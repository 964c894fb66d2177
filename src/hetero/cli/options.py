"""Options that several commands share, each with its name, its help and its kind of value in one place.

In: nothing. Out: annotations for the parameters of commands. docs/names.md lists every option; a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.floor.errors import BadValueError

if TYPE_CHECKING:
    import typer

__all__ = [
    "Address",
    "AsJson",
    "BatchSize",
    "CatalogDevices",
    "Checkpointing",
    "ClusterAddress",
    "Config",
    "ContextTokens",
    "Devices",
    "Engine",
    "Framework",
    "GraphDevices",
    "Iterations",
    "KvFormat",
    "Network",
    "Noise",
    "Output",
    "Policy",
    "Prices",
    "Seed",
    "Settings",
    "Trace",
    "TransferModel",
    "Weights",
    "WorkloadJob",
    "as_setting",
    "refuse_unused",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File or folder to write.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of every random choice; default: HETERO_SEED.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Setting, key.path=value, over the file's; may be repeated.")
]
Config = Annotated[Path | None, typer.Option(help="Configuration file.")]

# --- what runs on this host or a cluster -----------------------------------------------------------------------

Devices = Annotated[
    str | None, typer.Option("--devices", help="Devices to use, as in '1xcpu,1xcpu*0.25'; default: every sound one.")
]
Engine = Annotated[str | None, typer.Option(help="local, inline or ray.")]
Address = Annotated[str | None, typer.Option(help="Address of the Ray cluster: local, auto or host:port.")]
ClusterAddress = Annotated[str, typer.Option("--address", help="Where the head takes jobs: auto or host:port.")]
Policy = Annotated[str | None, typer.Option(help="Policy by name; 'auto' chooses.")]
Trace = Annotated[Path | None, typer.Option(help="File to write the trace to.")]
Prices = Annotated[
    list[str] | None, typer.Option(help="USD per hour: NAME=2.5, or a file of lines 'NAME: 2.5'; may be repeated.")
]

# --- what is planned -------------------------------------------------------------------------------------------

CatalogDevices = Annotated[
    str, typer.Option("--devices", help="Devices: 2xH100-SXM,4xRTX-4090, 'here', 'catalog', or a file.")
]
GraphDevices = Annotated[
    str | None, typer.Option("--devices", help="Fleet file (hetero-fleet/1), or a number of equal devices.")
]
WorkloadJob = Annotated[str, typer.Option(help="inference, finetune, lora, pretrain or embedding.")]
Weights = Annotated[str, typer.Option(help="Number format of the weights: bf16, fp8, nf4-dq, Q4_K_M, …")]
KvFormat = Annotated[str, typer.Option("--kv", help="Number format of the KV cache.")]
BatchSize = Annotated[int, typer.Option("--batch", help="Sequences at once on a replica.")]
ContextTokens = Annotated[int, typer.Option("--context", help="Tokens of a sequence, prompt and answer together.")]
Framework = Annotated[str, typer.Option(help="torch, litgpt, llama.cpp, vllm, tensorrt-llm or deepspeed.")]
Checkpointing = Annotated[bool, typer.Option("--checkpointing", help="Compute activations again.")]
Network = Annotated[str, typer.Option(help="Bandwidth between hosts, as in 10Gb/s.")]
Noise = Annotated[float, typer.Option(min=0.0, max=3.0, help="Spread of the logarithm of real times.")]
Iterations = Annotated[int | None, typer.Option(min=1, help="Iterations of the search for a plan.")]
TransferModel = Annotated[
    str, typer.Option(help="contention: transfers share links, memory has capacities; free: neither.")
]


# --- options as settings ------------------------------------------------------------------------------------

_PLAIN = re.compile(r"(?:[A-Za-z/]|\d+x[A-Za-z])[\w./*,-]*(:[\w./*,-]+)*")
_YAML_WORDS = ("null", "true", "false", "yes", "no", "on", "off")


def as_setting(key: str, text: str) -> str:
    r"""Write an option as a setting whose value YAML reads as text.

    Examples
    --------
    >>> as_setting("devices", "1xcpu,1xcpu*0.25"), as_setting("trace", "a b"), as_setting("devices", "null")
    ('devices=1xcpu,1xcpu*0.25', "trace='a b'", "devices='null'")
    >>> print(as_setting("trace", chr(10)))
    trace="\n"
    """
    if _PLAIN.fullmatch(text) and text.casefold() not in _YAML_WORDS:
        return f"{key}={text}"
    if not text.isprintable():
        return f"{key}={json.dumps(text)}"
    escaped = text.replace("'", "''")
    return f"{key}='{escaped}'"


def refuse_unused(context: typer.Context, used: Collection[str], why: str) -> None:
    """Refuse an option that was typed and that this form of a command does not read.

    Parameters
    ----------
    used
        Names of the parameters that it reads.
    why
        Which form that is, as in 'with --once'.

    Raises
    ------
    BadValueError
        Another option was typed.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in used:
            raise BadValueError(f"{parameter.opts[0]} has no effect {why}", remedy="leave it out")

"""The formats that hetero reads of others, for the fuzzer: some sound files of each, and what reads them.

In: nothing, and the data folder where it is there. Out: `Format`s. It must not change a file; `tests.fuzz` does.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import sqlite3
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz_kept import KEPT, Format
from tests.needs import PROJECT, absent, data_folder

__all__ = ["FORMATS", "Format"]

_MOST_SEED = 40_000


def _examples(*names: str) -> list[bytes]:
    return [(PROJECT / "examples" / name).read_bytes() for name in names]


def _data(pattern: str, most: int = 3) -> list[bytes]:
    """Return the beginnings of some files of the data folder, none where it is absent."""
    if absent("data"):
        return []
    found = (path.read_bytes() for path in sorted(data_folder().glob(pattern)) if path.is_file())
    some = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in found)
    return [data for data in some if len(data) <= _MOST_SEED][:most]


def _json(*documents: Any) -> list[bytes]:
    return [json.dumps(document, indent=1).encode() for document in documents]


_FLEET = {
    "format": "hetero-fleet/1",
    "devices": [
        {"id": "cpu0", "memory_node": "ram", "kind": "cpu", "speed": 1.0},
        {"id": "gpu0", "memory_node": "vram", "kind": "gpu", "speed": 4.0},
    ],
    "memory_nodes": [{"id": "ram"}, {"id": "vram", "capacity_bytes": 8_000_000_000}],
    "links": [
        {"src": "ram", "dst": "vram", "bandwidth_bytes_per_s": 1.2e10, "latency_s": 1e-5, "bus": "pcie"},
        {"src": "vram", "dst": "ram", "bandwidth_bytes_per_s": 1.2e10, "latency_s": 1e-5, "bus": "pcie"},
    ],
}
_GRAPH = {
    **{key: value for key, value in _FLEET.items() if key != "devices"},
    "format": "hetero-graph/1",
    "name": "three",
    "devices": [{key: row[key] for key in ("id", "memory_node", "kind")} for row in _FLEET["devices"]],
    "tasks": [{"id": name, "seconds": {"cpu0": 2.0, "gpu0": 0.5}} for name in "abc"],
    "edges": [{"src": "a", "dst": "b", "bytes": 1000}, {"src": "a", "dst": "c"}],
}
_DATA_GRAPH = {
    **{key: value for key, value in _GRAPH.items() if key != "edges"},
    "format": "hetero-graph/2",
    "items": [
        {"id": "x", "bytes": 1000, "at": "ram", "home": "vram"},
        {"id": "sum", "bytes": 8, "operator": {"cpu0": 0.1}},
    ],
    "tasks": [
        {
            "id": name,
            "seconds": {"cpu0": 2.0, "gpu0": 0.5},
            "uses": [{"item": "x", "mode": mode}, {"item": "sum", "mode": "REDUCE"}],
            "after": after,
            "memory_bytes": 1000,
        }
        for name, mode, after in (("a", "RW", []), ("b", "R", ["a"]), ("c", "COMMUTE", []))
    ],
}
_WORKFLOW = {
    "name": "w",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {
                    "name": "one",
                    "id": "one",
                    "parents": [],
                    "children": ["two"],
                    "inputFiles": [],
                    "outputFiles": ["f"],
                },
                {
                    "name": "two",
                    "id": "two",
                    "parents": ["one"],
                    "children": [],
                    "inputFiles": ["f"],
                    "outputFiles": [],
                },
            ],
            "files": [{"id": "f", "sizeInBytes": 12345}],
        },
        "execution": {
            "makespanInSeconds": 9,
            "tasks": [
                {"id": "one", "runtimeInSeconds": 3.5, "command": {"program": "cut", "arguments": ["-f"]}},
                {"id": "two", "runtimeInSeconds": 1, "command": {"program": "cat"}},
            ],
        },
    },
}
_PLAN = {
    "format": "hetero-plan/1",
    "policy": "heft",
    "model": "contention",
    "makespan_s": 2.5,
    "lower_bound_s": 1.0,
    "placements": [{"task": "a", "device": "gpu0", "start_s": 0.0, "finish_s": 0.5}],
    "transfers": [{"task": "a", "src": "vram", "dst": "ram", "start_s": 0.5, "finish_s": 0.6, "bytes": 1000}],
    "evictions": [],
    "repeats": [],
}
_TOPOLOGY = b"""format: hetero-topology/1
parts:
- {id: h0/cuda:0, kind: device, name: A100-SXM-80GB, host: h0, numa: 0, pci: "0000:01:00.0"}
- {id: h0/cuda:1, kind: device, name: A100-SXM-80GB, host: h0, rack: r1}
- {id: h0/nic0, kind: nic}
links:
- {from: h0/cuda:0, to: h0/cuda:1, kind: nvlink, bandwidth: 300GB/s, latency: 1us, origin: declared}
- {from: h0/cuda:1, to: h0/nic0, kind: pcie, bandwidth: 25GB/s}
"""
_MATRIX = b"""\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tPXB\t0-15\t0
GPU1\tNV12\t X \tSYS\t16-31\t1
NIC0\tPXB\tSYS\t X

Legend:

  X    = Self
"""
_DEVICES = b"""devices:
- {name: H100-SXM, count: 4, usd_per_hour: 2.9, day: 2026-11-01, host: h1, rack: r1}
- {name: RTX-4090, count: 2, link: 25GB/s}
- A100-SXM-80GB
leases:
- {workload: nightly, name: H100-SXM, count: 1}
"""
_TABLE = b"""device,count,framework,model,precision,kind,batch,input_len,output_len,value,oom
Nvidia H100 GPU,1,vLLM,Llama-3.1-8B,fp16,throughput,16,1024,1024,1500.5,0
RTX-4090,1,llama.cpp,Llama-3.1-8B,Q4_K_M,decode,1,512,128,120,0
A100,2,TensorRT-LLM,Llama-3.1-70B,bf16,e2e,8,128,128,9.5,0
H100,1,vLLM,Llama-3.1-8B,fp16,prefill,max,256,1,,1
"""
_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "head_dim": 16,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "sliding_window": 512, "layer_types": None,
}  # fmt: skip
_MIXTURE = {
    **_CONFIG, "model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 24,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "text_config": {"num_hidden_layers": 3},
}  # fmt: skip


def _text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def _gguf() -> list[bytes]:
    facts = {"general.architecture": (8, _text("llama")), "general.name": (8, _text("Tiny"))}
    facts["tokenizer.ggml.tokens"] = (9, struct.pack("<IQ", 8, 4) + b"".join(_text(f"t{at}") for at in range(4)))
    facts["tokenizer.ggml.scores"] = (9, struct.pack("<IQ", 6, 4) + bytes(16))
    numbers = {"block_count": 2, "embedding_length": 256, "feed_forward_length": 512, "context_length": 4096}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    facts |= {f"llama.{name}": (4, struct.pack("<I", value)) for name, value in numbers.items()}
    names = ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight")
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(facts))
    body = b"".join(_text(name) + struct.pack("<I", kind) + value for name, (kind, value) in facts.items())
    return [head + body + b"".join(_text(name) + struct.pack("<IQQIQ", 2, 256, 256, 12, 0) for name in names)]


def _safetensors() -> list[bytes]:
    tensor = {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 8]}
    header = {"__metadata__": {"format": "pt"}, "model.layers.0.q.weight": tensor, "lm_head.weight": tensor}
    text = json.dumps(header).encode()
    return [struct.pack("<Q", len(text)) + text + bytes(16)]


@cache
def _traces() -> list[bytes]:
    import tempfile

    from hetero.drive.trace import TraceWriter
    from tests.sim.report_runs import run

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in (4, 5):
            records, devices = run(seed, rough=seed == 5, count=12)
            writer = TraceWriter(path := Path(folder) / "seed.trace.jsonl", devices=devices)
            for each in records:
                writer.write(each)
            writer.close()
            found.append(path.read_bytes())
    return found


@cache
def _history() -> list[bytes]:
    import tempfile

    from hetero.stores.history import HistoryStore, Sample

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        store = HistoryStore(path)
        store.add([Sample("f", "cpu/x", 1.0, 0.1), Sample("g", "cuda/y", 2.0, 0.2)])
        store.add_results({"f": 100})
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")
        return [path.read_bytes()]


def _states() -> list[bytes]:
    import numpy as np

    from hetero.stores.checkpoints import encode_state

    return [encode_state({"step": 3, "w": np.arange(6.0).reshape(2, 3), "names": ("a", b"b"), "more": [1.5, None]})]


def _encrypted() -> list[bytes]:
    from hetero.stores.encryption import EncryptionKey, encrypt

    target = io.BytesIO()
    encrypt(io.BytesIO(bytes(range(200))), target, EncryptionKey(bytes(32)), chunk_bytes=64)
    return [target.getvalue()]


def _decrypted(path: Path) -> None:
    from hetero.stores.encryption import EncryptedFile, EncryptionKey, decrypt

    with path.open("rb") as file:
        decrypt(file, None, [EncryptionKey(bytes(32))])
        EncryptedFile(file, [EncryptionKey(bytes(32))]).read(100, 10)


def _training_states() -> list[bytes]:
    facts = json.dumps({"numbers": [3.0, 1.0], "model": ["w"], "optimizer": {}})
    header = json.dumps({"__metadata__": {"format": "x", "facts": facts}}).encode()
    return [struct.pack("<Q", len(header)) + header]


def _sample_logs() -> list[bytes]:
    rows = [
        {"what": "begins", "generation": 0, "step": 0, "device": "h0/cpu:0", "of": 4, "global_batch": 2},
        {"what": "computes", "generation": 0, "step": 1, "samples": [0, 1]},
        {"what": "applied", "generation": 0, "step": 1, "at_s": 12.5},
    ]
    return [b"".join(json.dumps(row).encode() + b"\n" for row in rows)]


# what reads them


def _used_graph(path: Path) -> None:
    from hetero.graphs.document import document_of
    from hetero.graphs.formats import convert

    document_of(convert(path, "2", columns=("cpu", "gpu") if path.suffix == ".txt" else ()))


def _columns(path: Path) -> None:
    from hetero.graphs.formats import convert

    fleet = path.with_name("fleet.json")
    fleet.write_text(json.dumps(_FLEET))
    convert(path, str(fleet), "hswf", ("cpu", "gpu"), 1000)


def _graph_fleet(path: Path) -> None:
    from hetero.graphs.fleet_files import read_fleet

    read_fleet(str(path)).seconds(2.0, "cut")


def _plan(path: Path) -> None:
    from hetero.graphs.plan_files import plan_document, read_plan

    plan_document(read_plan(path))


def _prices(path: Path) -> None:
    from hetero.advise.prices import read_prices

    for paid in read_prices(path).values():
        assert paid.said


def _devices(path: Path) -> None:
    from hetero.advise.fleet import group_of, read_fleet

    for kind in read_fleet(str(path)):
        group_of(kind, 2)


def _workload(path: Path) -> None:
    from hetero.cli.plan import read_workload

    read_workload(str(path), {})


def _table(path: Path) -> None:
    from hetero.advise.measurements import read_rows, read_table

    _, unread = read_rows(read_table(path))
    for line in unread:
        assert "\n" not in line, line


def _topology(path: Path) -> None:
    from hetero.backends.topology_files import as_document, read_topology

    as_document(read_topology([path], network_bytes_per_s=None))


def _trace(path: Path) -> None:
    from hetero.drive.trace_read import summary

    summary(path)
    for line in _report(path):
        assert not any(char in line for char in "\x1b\x9b\u202e"), line


def _report(path: Path) -> Iterator[str]:
    from hetero.report.findings import find
    from hetero.report.tables import device_table, loss_table
    from hetero.report.timeline import gantt
    from hetero.report.trace_reader import read_run

    run = read_run(path)
    found = find(run, {})
    yield from found.sentences
    yield device_table(found)
    yield loss_table(found)
    json.dumps(found.as_dict(), default=str)
    yield from (line.plain for line in gantt(run, 80))


def _page(path: Path) -> None:
    from hetero.report.chrome import chrome_trace
    from hetero.report.html import page
    from hetero.report.trace_reader import read_run

    run = read_run(path)
    json.dumps(chrome_trace(run))
    page(run, {})


def _model(path: Path) -> None:
    from hetero.advise.fit import read_model
    from hetero.model.workload import WorkloadSpec
    from hetero.plan.sizing.footprint import footprint

    assert footprint(WorkloadSpec(read_model(path), context=512)).total >= 0


def _weights(path: Path) -> None:
    from hetero.advise.weight_files import read_weights

    assert read_weights(path).total >= 0


def _config(path: Path) -> None:
    from hetero.session.config import load

    load(path)


def _recipe(path: Path) -> None:
    from hetero.recipes.training import read_recipe

    read_recipe(path)


def _search(path: Path) -> None:
    from hetero.recipes.tune import read_search

    read_search(path)


def _batch(path: Path) -> None:
    from hetero.batch.recipe import read_batch_recipe

    path.with_name("embed_folder.py").write_text("def embed(batch):\n    return batch\n", encoding="utf-8")
    read_batch_recipe(path)


def _anonymisation(path: Path) -> None:
    from hetero.privacy.recipe import read_anonymisation

    key = path.with_name("people.key")
    key.write_text("0" * 64, encoding="ascii")
    key.chmod(0o600)
    read_anonymisation(path)


def _stored(path: Path) -> None:
    from hetero.stores.history import HistoryStore

    store, _ = HistoryStore.open_or_aside(path)
    store.load(store.device_keys())
    store.result_bytes()
    for beside in path.parent.glob("*damaged*"):
        beside.unlink()


def _state(path: Path) -> None:
    from hetero.stores.checkpoints import decode_state

    decode_state(path.read_bytes())


def _training_state(path: Path) -> None:
    from hetero.train.state import step_of

    step_of(path.read_bytes())


def _samples(path: Path) -> None:
    from hetero.train.sample_log import read_sample_log

    read_sample_log(path.parent)


def _digits(path: Path) -> None:
    from hetero.recipes.mnist import read_idx

    read_idx(path)


def _idx() -> list[bytes]:
    data = struct.pack(">HBBII", 0, 8, 2, 3, 4) + bytes(range(12))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(data)
    return [data, packed.getvalue()]


_EXAMPLE = b"""devices:
- {type: GPU, id: 0, memory_limit: 8GB}
- {type: CPU, cores: 8, throttle: 0.5}
communication: {protocol: RDMA, buffer_size: 64MB}
memory_pool_size: 2GB
timeout: 5min
"""
_STG = b" 3\n 0 5 0\n 1 3 1 0\n 2 4 2 0 1\n# end\n"
_DOT = b"""digraph g { node [kind=x]; a [seconds=2]; b [seconds="1.5"]; a -> b [bytes=1000]; subgraph { c; d };
c [size=1]; d [weight=2] }
"""
_HSWF = b"a 10 2\nb 30.5 -1 a\nc 1 1 a b\n"
_WORKLOAD = b"model: Llama-3.1-8B\njob: inference\nbatch: 4\ncontext: 4096\nprompt: 512\nneeds: [fp8]\nstreams: []\n"
_PRICED = b"H100-SXM: 2.90\nRTX-4090: {usd_per_hour: 0.4, day: 2026-11-01}\n"

FORMATS = (
    Format("configuration", "a.yaml", lambda: [_EXAMPLE], _config, "yaml"),
    Format("training recipe", "a.yaml", lambda: _examples("mnist.yaml"), _recipe, "yaml"),
    Format("search recipe", "a.yaml", lambda: _examples("tune.yaml"), _search, "yaml"),
    Format("batch recipe", "a.yaml", lambda: _examples("embed_folder.yaml"), _batch, "yaml"),
    Format("graph", "a.json", lambda: _json(_GRAPH, _DATA_GRAPH), _used_graph, "json"),
    Format("workflow", "a.json", lambda: _json(_WORKFLOW) + _data("graphs/wfinstances/*.json*"), _used_graph, "json"),
    Format("standard task graph", "a.stg", lambda: [_STG, *_data("graphs/stg/**/*.stg")], _used_graph, "bytes"),
    Format("dot", "a.dot", lambda: [_DOT], _used_graph, "bytes"),
    Format("columns", "a.txt", lambda: [_HSWF], _columns, "table"),
    Format("graph fleet", "a.json", lambda: _json(_FLEET), _graph_fleet, "json"),
    Format("plan", "a.json", lambda: _json(_PLAN), _plan, "json"),
    Format("prices", "a.yaml", lambda: [_PRICED], _prices, "yaml"),
    Format("fleet", "a.yaml", lambda: [_DEVICES], _devices, "yaml"),
    Format("workload", "a.yaml", lambda: [_WORKLOAD], _workload, "yaml"),
    Format("anonymisation recipe", "a.yaml", lambda: _examples("anonymise.yaml"), _anonymisation, "yaml"),
    Format("measurements", "a.csv", lambda: [_TABLE], _table, "table"),
    Format("topology", "a.yaml", lambda: [_TOPOLOGY], _topology, "yaml"),
    Format("topology matrix", "a.txt", lambda: [_MATRIX], _topology, "table"),
    Format("trace", "a.trace.jsonl", _traces, _trace, "lines"),
    Format("packed trace", "a.trace.jsonl.gz", lambda: [gzip.compress(one) for one in _traces()], _trace, "bytes"),
    Format("trace as a page", "a.trace.jsonl", _traces, _page, "lines"),
    Format("model", "config.json", lambda: _json(_CONFIG, _MIXTURE), _model, "json"),
    Format("safetensors", "a.safetensors", _safetensors, _weights, "bytes"),
    Format("gguf", "a.gguf", _gguf, _weights, "bytes"),
    Format("history", "history.sqlite", _history, _stored, "bytes"),
    Format("checkpoint", "state", _states, _state, "bytes"),
    Format("training state", "state", _training_states, _training_state, "bytes"),
    Format("encrypted file", "a.enc", _encrypted, _decrypted, "bytes"),
    Format("log of samples", "run-000000-h0.samples.jsonl", _sample_logs, _samples, "lines", (1, 3)),
    Format("digits", "a.idx", _idx, _digits, "bytes"),
    *KEPT,
)

"""The grammar of the command line: every command, its place, and the first line of its help.

In: nothing. Out: tables of names. It must not import a command, so that the list of them costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetero.cli.lazy import CommandEntry, GroupEntry
from hetero.cli.old_names import (
    OF_CHOICE,
    OF_GRAPH,
    OF_ONE_DEVICE,
    OF_TASKS,
    OF_TOPOLOGY,
    OF_TRAINING,
    OldOption,
    of_plan,
    of_report,
    only,
)

__all__ = ["COMMANDS", "REPORT"]

_PRICES = {"--price": OldOption("--prices")}
_SCRIPT = {"allow_interspersed_args": False}
_RUN, _MODELS, _PLAN, _MORE = "Run programs", "Models and data", "Plan ahead", "Clusters and reports"

_GRAPH = GroupEntry(
    "Plan, simulate, compare and convert task graphs in files.",
    {
        "plan": CommandEntry(
            "hetero.cli.graph:plan",
            "Plan a task graph, and say how far from the best possible the plan is.",
            old_options=only(OF_GRAPH, "--out", "--model", "--policy"),
        ),
        "simulate": CommandEntry(
            "hetero.cli.graph:simulate",
            "Run a task graph in virtual time, by the code that runs programs.",
            old_options=only(OF_GRAPH, "--fleet", "--model"),
        ),
        "whatif": CommandEntry(
            "hetero.cli.graph:whatif", "Compare what a task graph takes on its fleet and on another one."
        ),
        "show": CommandEntry("hetero.cli.graph:show", "Show the tasks and edges of a graph, or of a run by its trace."),
        "convert": CommandEntry(
            "hetero.cli.graph:convert",
            "Write a graph as hetero-graph/1, or hetero-graph/2 where it has items.",
            old_options=only(OF_GRAPH, "--fleet", "--out"),
        ),
        "check": CommandEntry(
            "hetero.cli.graph:check",
            "Check a plan of a task graph by code that knows no planner; exits 1 when it is not sound.",
        ),
        "schema": CommandEntry(
            "hetero.cli.graph:schema", "Print the JSON Schema of hetero-graph/1 and hetero-graph/2."
        ),
    },
    _PLAN,
)

_PLANS = GroupEntry(
    "Know before you run: what fits where, how fast, at what price.",
    {
        "fit": CommandEntry(
            "hetero.cli.plan:fit",
            "Report whether a model fits, what takes the memory, and what would make it fit.",
            old_options=OF_ONE_DEVICE,
        ),
        "speed": CommandEntry(
            "hetero.cli.plan:speed",
            "Report how fast devices do a workload: latency, tokens a second, memory, each with its 80 % interval.",
            old_options=only(OF_ONE_DEVICE, "--device", "--count", "--engine"),
        ),
        "choose": CommandEntry(
            "hetero.cli.plan:choose",
            "Choose devices for a workload: which, how many, in which mix, at what price, and why.",
            old_options=OF_CHOICE,
        ),
        "llm": CommandEntry(
            "hetero.cli.plan:llm",
            "Print how to start a model on these devices, from their speed and their memory.",
            old_options=only(OF_CHOICE, "--fleet", "--tokens", "--engine"),
        ),
        "training": CommandEntry(
            "hetero.cli.plan:training",
            "Report how long a training takes on hosts of unequal speed, who computes how much, and who is left out.",
            old_options=OF_TRAINING,
        ),
        "tasks": CommandEntry(
            "hetero.cli.plan:tasks",
            "Report how long many independent tasks take on many hosts, by the code that runs programs, in virtual"
            " time.",
            old_options=OF_TASKS,
        ),
        "accuracy": CommandEntry(
            "hetero.cli.plan:accuracy",
            "Report how far estimates lie from tables of measured speeds, as priors give them and after own"
            " measurements.",
        ),
    },
    _PLAN,
    of_plan,
)

_CATALOG = GroupEntry(
    "Facts about devices and models, each with its source.",
    {
        "list": CommandEntry("hetero.cli.catalog:list_", "List the devices or models that the catalog knows."),
        "show": CommandEntry(
            "hetero.cli.catalog:show",
            "Show one device or model: each figure, where it was read and how it is printed there.",
        ),
        "compare": CommandEntry(
            "hetero.cli.catalog:compare_",
            "Compare devices: speed, memory, per dollar, per watt, and what each is best for.",
            old_options=only(OF_TOPOLOGY, "--png"),
        ),
    },
    _PLAN,
)

_CLUSTER = GroupEntry(
    "Make this host part of a cluster on Ray, and run programs there.",
    {
        "start": CommandEntry(
            "hetero.cli.cluster:start",
            "Start this host's part of a cluster, and say how the next host joins.",
            old_options={"--memory": OldOption("--object-store-memory")},
        ),
        "stop": CommandEntry(
            "hetero.cli.cluster:stop",
            "End this host's part of the cluster: only what 'hetero cluster start' started.",
        ),
        "certificates": CommandEntry(
            "hetero.cli.cluster:certificates", "Make the certificates that the hosts of a cluster share."
        ),
        "submit": CommandEntry(
            "hetero.cli.cluster:submit",
            "Run a program on a cluster; it finds the devices of all hosts.",
            context=_SCRIPT,
        ),
        "jobs": CommandEntry("hetero.cli.cluster:jobs", "List the jobs, the latest first."),
        "logs": CommandEntry("hetero.cli.cluster:logs", "Show what the program of a job printed."),
        "cancel": CommandEntry("hetero.cli.cluster:cancel", "Stop a job; one that is over stays as it ended."),
        "serve": CommandEntry(
            "hetero.cli.cluster:serve",
            "Start the job server of this host's head again, after it has ended; jobs go on without it and are found"
            " again.",
        ),
    },
    _MORE,
)

_DATA = GroupEntry(
    "Encrypt files at rest, with keys that can be changed without writing the data anew.",
    {
        "encrypt": CommandEntry(
            "hetero.cli.data:encrypt",
            "Encrypt a file: AES-256-GCM in chunks, with a key of its own that yours wraps.",
        ),
        "decrypt": CommandEntry(
            "hetero.cli.data:decrypt",
            "Decrypt a file; one that is damaged anywhere is refused, and nothing is written.",
        ),
        "rekey": CommandEntry(
            "hetero.cli.data:rekey",
            "Change the key of encrypted files: their headers are written anew, and none of their data.",
        ),
        "verify": CommandEntry(
            "hetero.cli.data:verify",
            "Check every byte of encrypted files by their key; exits 1 when one is damaged.",
        ),
    },
    _MODELS,
)

REPORT = GroupEntry(
    "See where the time of a run went, and how far from the best it was.",
    {
        "html": CommandEntry(
            "hetero.cli.profiler:html",
            "Write the report: one page of HTML that opens anywhere, without the network.",
            old_options=_PRICES,
        ),
        "summary": CommandEntry(
            "hetero.cli.profiler:summary", "Report in sentences where the time went.", old_options=_PRICES
        ),
        "gantt": CommandEntry("hetero.cli.profiler:gantt", "Draw the timeline in the terminal."),
        "chrome": CommandEntry("hetero.cli.profiler:chrome", "Write Chrome-trace JSON, which Perfetto opens."),
        "png": CommandEntry(
            "hetero.cli.profiler:png", "Write the timeline as a picture: PNG, SVG or PDF, by the name's ending."
        ),
        "compare": CommandEntry(
            "hetero.cli.profiler:compare",
            "Report what got slower from run A to run B, where, and whether it is more than chance.",
        ),
        "run": CommandEntry(
            "hetero.cli.profiler:run",
            "Run a script that need not know of it, and write a report of each Context that it opened.",
            context=_SCRIPT,
            old_options=_PRICES,
        ),
    },
    _MORE,
    of_report,
)
"""The commands of `hetero report`, which are those of `hetero-profiler`."""

COMMANDS: Mapping[str, CommandEntry | GroupEntry] = {
    "run": CommandEntry("hetero.cli.run:run", "Run a script on the devices of this host.", _RUN, _SCRIPT),
    "devices": CommandEntry("hetero.cli.devices:devices", "List this host's devices, and why one is not used.", _RUN),
    "doctor": CommandEntry("hetero.cli.doctor:doctor", "Show what is missing on this host, and how to get it.", _RUN),
    "doctor storage": CommandEntry(
        "hetero.cli.doctor:storage",
        "Try what a store keeps: conditional writes, signatures, listings, uploads that die, renames.",
        _RUN,
    ),
    "demo": CommandEntry("hetero.cli.demo:demo", "Run real computations on this host's devices and check them.", _RUN),
    "top": CommandEntry("hetero.cli.top:top", "Show devices, tasks, memory and links of a run that is going on.", _RUN),
    "launch": CommandEntry(
        "hetero.cli.launch:launch",
        "Run a training script in one process for each device, each with its part of every batch.",
        _MODELS,
        _SCRIPT,
    ),
    "train": CommandEntry(
        "hetero.cli.train:train",
        "Train one model over this host's devices, or with Ray over those of many, as a recipe says.",
        _MODELS,
    ),
    "train check": CommandEntry(
        "hetero.cli.launch:check",
        "Run a training script on one device and over several, and report where they part; exits 1 where they do.",
        _MODELS,
    ),
    "tune": CommandEntry(
        "hetero.cli.tune:tune",
        "Search for the best values of a recipe or a function; run anew, it goes on with what was stopped.",
        _MODELS,
    ),
    "compress": CommandEntry(
        "hetero.cli.compress:compress",
        "Prune and quantise a saved model; tells size, speed on each device and accuracy before and after.",
        _MODELS,
        old_options={"--quantise": OldOption("--quantize")},
    ),
    "infer": CommandEntry(
        "hetero.cli.train:infer",
        "Run a saved model on pictures, over this host's devices, or with Ray over those of many.",
        _MODELS,
    ),
    "batch": CommandEntry(
        "hetero.cli.batch:batch",
        "Run a function or a model over many records, every device at its own batch size.",
        _MODELS,
        old_options=only(OF_GRAPH, "--out"),
    ),
    "anonymise": CommandEntry(
        "hetero.cli.anonymise:anonymise",
        "Anonymise tables as a recipe says: k-anonymity, l-diversity and t-closeness of the whole, over all devices.",
        _MODELS,
    ),
    "anonymise detect": CommandEntry(
        "hetero.cli.anonymise:detect",
        "Print a recipe to begin with, from the names of a table's columns and its first rows.",
        _MODELS,
    ),
    "data": _DATA,
    "graph": _GRAPH,
    "plan": _PLANS,
    "catalog": _CATALOG,
    "topo": CommandEntry(
        "hetero.cli.topo:topo",
        "Show how devices are connected, and which of them work together best.",
        _PLAN,
        old_options=OF_TOPOLOGY,
    ),
    "calibrate": CommandEntry(
        "hetero.cli.calibrate:calibrate",
        "Measure the devices of this host, about a minute each, and keep the figures; or keep your own.",
        _PLAN,
        old_options={"--from": OldOption("--measurements")},
    ),
    "cluster": _CLUSTER,
    "report": REPORT,
    "config": GroupEntry(
        "Check a configuration.",
        {
            "check": CommandEntry(
                "hetero.cli.config:check",
                "Print what a configuration means, or all its mistakes; exits 3 when there are any.",
            )
        },
        _MORE,
    ),
}
"""The commands of `hetero`."""

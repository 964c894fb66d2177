"""Training scripts under `hetero launch`: the numbers of one device or one line that says why not; nothing hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

LOOPS = Path(__file__).with_name("launched_loops.py")
PATIENCE_S = 240.0
MORE = pytest.mark.servers
"""More of what one launch shows in `make test`: each takes three processes that load torch."""

INIT = "import os, random, signal, sys, torch, hetero\nfleet = hetero.train.init()\n"


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HETERO_HOME": str(home), "OMP_NUM_THREADS": "1"}


def launched(
    home: Path, script: Path, *args: str, options: tuple[str, ...] = (), devices: str = "1xcpu,1xcpu*0.4"
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "hetero", "launch", "--devices", devices, *options, str(script), *args]
    return subprocess.run(words, env=environment(home), capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def alone(home: Path, script: Path, *args: str) -> str:
    words = [sys.executable, str(script), *args]
    found = subprocess.run(words, env=environment(home), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return found.stdout


def written(folder: Path, text: str) -> Path:
    script = folder / "script.py"
    script.write_text(INIT + text)
    return script


MODEL = """
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
loader = torch.utils.data.DataLoader(data, 8)
model, optimizer, loader = fleet.prepare(model, optimizer, loader)
for number, (inputs, targets) in enumerate(loader):
    optimizer.zero_grad()
    {before}
    out = model(inputs)
    loss = {loss}
    loss.backward()
    optimizer.step()
print("over")
"""
ENTROPY = "torch.nn.functional.cross_entropy(out, targets)"


ALL = [
    "dropout_schedule_and_clipping", "losses_of_every_kind", "two_models_that_play_against_each_other", "a_closure",
    "accumulated_with_hooks", "batch_norm_and_evaluation", "a_stream_of_dicts_and_no_optimizer", "padding_and_dropout",
    "the_batch_in_the_second_dimension", "recurrent_networks_with_dropout", "norms_penalties_and_overflow",
    "batches_of_every_form", "a_last_batch_of_one_row_and_normalised_positions", "penalties_beside_two_means",
    "embeddings_of_bounded_norm", "numbers_drawn_for_no_rows",
    "losses_of_which_a_multiple_goes_backward", "losses_of_two_heads", "sums_of_data_that_nobody_cuts",
    "graphs_after_batches_of_a_split", "two_shuffled_loaders_at_once",
    "rows_chosen_before_a_norm",
]  # fmt: skip
LATER = [
    "dropout_schedule_and_clipping", "padding_and_dropout", "the_batch_in_the_second_dimension",
    "recurrent_networks_with_dropout",
]  # fmt: skip


LEFT_OUT = [
    "epochs_whose_sums_are_those_of_all_devices", pytest.param("epochs_counted_beside_the_loop", marks=MORE),
    pytest.param("batches_split_one_step_ahead", marks=MORE), pytest.param("what_nobody_divides", marks=MORE),
]  # fmt: skip


def same_lines(found: str, wanted: str) -> None:
    lines, likes = ([line.split() for line in text.splitlines()] for text in (found, wanted))
    assert [line[0] for line in lines] == [line[0] for line in likes]
    for line, like in zip(lines, likes, strict=True):
        numbers = [[float(value) for value in words if value[-1].isdigit()] for words in (line[1:], like[1:])]
        rel = 1e-8 if like[0] == "closure" else 1e-12  # L-BFGS divides by differences of gradients
        assert numbers[0] == pytest.approx(numbers[1], rel=rel), like[0]


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize("loop", LEFT_OUT)
def test_devices_that_cost_more_than_they_bring_are_left_out(loop: str, tmp_path: Path) -> None:
    found = launched(tmp_path, LOOPS, "surely_left_out", loop, devices="1xcpu*0.4,1xcpu")
    assert found.returncode == 0, found.stderr
    said = [line for line in found.stderr.splitlines() if "left out" in line]
    assert ["cpu:0" in line for line in said] == [True], found.stderr  # the fastest is the main process
    same_lines(found.stdout, alone(tmp_path, LOOPS, loop))


@pytest.mark.servers
@pytest.mark.slow
def test_the_others_go_on_without_a_device_that_is_left_out(tmp_path: Path) -> None:
    found = launched(tmp_path, LOOPS, "one_of_three_goes", devices="3xcpu")
    assert found.returncode == 0, found.stderr
    assert "cpu:1 left out" in found.stderr
    same_lines(found.stdout, alone(tmp_path, LOOPS, "one_of_three_goes"))


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize(
    "loop", ["fetched_ahead_by_hand", pytest.param("what_is_counted_from_the_beginning", marks=MORE)]
)
def test_a_device_stays_where_something_of_it_is_still_to_be_used(loop: str, tmp_path: Path) -> None:
    found = launched(tmp_path, LOOPS, "surely_left_out", loop, options=("--check-steps", "0"))
    assert found.returncode == 0, found.stderr
    assert "left out" not in found.stderr
    same_lines(found.stdout, alone(tmp_path, LOOPS, loop))


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "where", "kills"),
    [
        ("norm,object,alike", "forward", ("0@9", "2@13")),  # the main process, and then one of the two that are left
        pytest.param("two,workers", "second", ("1@12",), marks=MORE),  # one of two optimizers has stepped
        pytest.param("split", "evaluation", ("2@10", "1@15"), marks=MORE),
    ],
)
def test_those_that_are_left_do_a_step_again(kinds: str, where: str, kills: tuple[str, ...], tmp_path: Path) -> None:
    script = LOOPS.with_name("launched_deaths.py")
    shares = "cpu:0=24,cpu:1=21,cpu:2=19" if "norm" in kinds else "equal"  # given: nobody is left out before its kill
    options = ("--shares", shares)
    found = launched(tmp_path, script, kinds, where, *kills, devices="3xcpu", options=options)
    assert found.returncode == 0, found.stderr
    lost = [line for line in found.stderr.splitlines() if "was ended by SIGKILL" in line]
    assert len(lost) == len(kills), found.stderr
    assert "missing" not in found.stderr  # all that is counted is counted in the function of a step
    same_lines(found.stdout, alone(tmp_path, script, kinds, where))


SAVED = """
def train(inputs, targets):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()

def save():
    if fleet.is_main:
        if fleet.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        print("saved")
    {ending}

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
model, optimizer, loader = fleet.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
for inputs, targets in loader:
    fleet.step(train, inputs, targets)
{saving}
"""


@pytest.mark.servers
@pytest.mark.slow
def test_a_main_process_that_is_killed_while_it_saves_ends_the_run_or_another_one_saves(tmp_path: Path) -> None:
    found = launched(tmp_path, written(tmp_path, SAVED.format(ending="pass", saving="save()")))
    assert (found.returncode, found.stdout) == (1, ""), found.stderr
    assert "cpu:0 was the main process, and was lost after the last step" in found.stderr.splitlines()[-1]
    found = launched(tmp_path, written(tmp_path, SAVED.format(ending="fleet.wait()", saving="fleet.step(save)")))
    assert (found.returncode, found.stdout) == (0, "saved\n"), found.stderr
    assert "goes on, without what it still had to write" in found.stderr


@pytest.mark.servers
@pytest.mark.slow
def test_each_training_of_a_script_is_compared_with_one_device(tmp_path: Path) -> None:
    loop = "folds_with_a_model_of_their_own"
    found = launched(tmp_path, LOOPS, loop, devices="3xcpu", options=("--shares", "equal"))
    assert found.returncode == 0, found.stderr
    assert not [line for line in found.stderr.splitlines() if line.startswith("hetero:")]
    same_lines(found.stdout, alone(tmp_path, LOOPS, loop))


@pytest.mark.servers
@pytest.mark.slow
def test_what_a_script_passes_over_or_reads_of_its_own_rows_is_named(tmp_path: Path) -> None:
    script = written(tmp_path, MODEL.format(before="if len(inputs) != 8: continue", loss=ENTROPY))
    found = launched(tmp_path, script, options=("--check-steps", "0"))
    assert (found.returncode, found.stdout) == (0, "over\n"), found.stderr
    assert "8 batches were read, and none was followed by a backward pass" in found.stderr
    loss = f"model.bias.exp()[0] * (term := {ENTROPY})"
    found = launched(tmp_path, written(tmp_path, MODEL.format(before="pass", loss=loss)))
    assert (found.returncode, found.stdout) == (0, "over\n"), found.stderr
    assert "item() of a number that a loss is made of is that of the own rows" in found.stderr


@pytest.mark.servers
@pytest.mark.slow
def test_a_second_training_that_mixes_samples_is_refused_by_name(tmp_path: Path) -> None:
    text = MODEL.format(before="pass", loss=ENTROPY) + MODEL.format(
        before="inputs = inputs - inputs.mean(0)", loss=ENTROPY
    )
    found = launched(tmp_path, written(tmp_path, text))
    assert (found.returncode, found.stdout) == (2, "over\n"), found.stderr
    assert "the gradients of Linear, " in found.stderr.splitlines()[-1]
    assert "differ from those of one device" in found.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_training_that_cannot_be_compared_is_named(tmp_path: Path) -> None:
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    text = MODEL.format(before="pass", loss=ENTROPY)
    found = launched(tmp_path, written(tmp_path, thread + text + text))
    assert (found.returncode, found.stdout) == (0, "over\nover\n"), found.stderr
    assert "Linear is prepared after the steps that are compared with one device, and is not" in found.stderr


def test_a_step_is_given_the_batch_as_it_came(tmp_path: Path) -> None:
    before = "fleet.step(print, inputs * 2)"
    found = launched(tmp_path, written(tmp_path, MODEL.format(before=before, loss=ENTROPY)))
    assert found.returncode == 2
    assert "fleet.step was given a tensor of shape (" in found.stderr.splitlines()[-1]


COUNTED = """
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
model, optimizer, loader = fleet.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))

def train(inputs, targets):
    optimizer.zero_grad()
    number == 3 and fleet.rank == 1 and os.kill(os.getpid(), signal.SIGKILL)
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    return len(inputs)

seen = 0
for number, (inputs, targets) in enumerate(loader):
    seen += fleet.step(train, inputs, targets)
print("seen", int(fleet.sum(seen)))
"""


@pytest.mark.servers
@pytest.mark.slow
def test_a_step_given_no_batch_is_of_all_it_computes_also_beside_a_share_of_one_row(tmp_path: Path) -> None:
    """Any number of rows is a multiple of one: nothing but what the step was given says that none were cut."""
    script = LOOPS.with_name("launched_deaths.py")
    found = launched(tmp_path, script, "norm,alike", "nowhere", devices="1xcpu,1xcpu", options=("--shares", ONE_ROW))
    assert found.returncode == 0, found.stderr
    assert found.stdout == alone(tmp_path, script, "norm,alike", "nowhere")


@pytest.mark.servers
@pytest.mark.slow
def test_what_a_lost_process_has_counted_is_said_to_be_missing(tmp_path: Path) -> None:
    found = launched(tmp_path, written(tmp_path, COUNTED), options=("--check-steps", "0"))
    assert found.returncode == 0, found.stderr
    assert found.stdout != "seen 64\n"
    assert "what the lost process had counted before is missing from now on: seen (script.py, line " in found.stderr


ONE_ROW = "cpu:0=23,cpu:1=1"
PARTLY_BY_CLOSURE = """
def train(given):
    torch.nn.functional.cross_entropy(model(given), targets).backward()
fleet.step(train, inputs)
"""
ONE_SKIPS = "if number == 5 and fleet.rank == 1:\n    continue"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "said"),
    [
        (PARTLY_BY_CLOSURE, "the function of fleet.step takes targets, a part of the batch, from outside"),
        (ONE_SKIPS, "with different batches: cpu:0 with its number 6, cpu:1 with its number 7"),
    ],
)
def test_a_batch_of_which_a_part_is_missed_is_refused(before: str, said: str, tmp_path: Path) -> None:
    script = written(tmp_path, MODEL.format(before=before.strip().replace("\n", "\n    "), loss=ENTROPY))
    found = launched(tmp_path, script, options=("--check-steps", "0"))
    assert (found.returncode, found.stdout) == (2, ""), found.stderr
    assert said in found.stderr


BY_CLOSURE = """
def train():
    optimizer.zero_grad()
    {kill}
    torch.nn.functional.cross_entropy(model(inputs * 2), targets).backward()
    optimizer.step()
fleet.step(train)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    ["pass", pytest.param("fleet.rank == 1 and os.kill(os.getpid(), signal.SIGKILL)", marks=MORE)],
    ids=["nobody is lost", "lost in the first one"],
)
def test_a_step_whose_function_takes_a_batch_that_it_was_not_given_is_refused(kill: str, tmp_path: Path) -> None:
    step = BY_CLOSURE.format(kill=kill).strip().replace("\n", "\n    ")
    script = written(tmp_path, MODEL.format(before=step, loss=ENTROPY))
    found = launched(tmp_path, script, options=("--check-steps", "0"))
    assert (found.returncode, found.stdout) == (2, ""), found.stderr
    assert "fleet.step was given no batch, and its function computes other rows" in found.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("loops", "steps"), [(ALL, 1000), (LATER, 2)], ids=["compared", "shares that move"])
def test_a_loop_prints_what_one_device_prints(loops: list[str], steps: int, tmp_path: Path) -> None:
    found = launched(tmp_path, LOOPS, *loops, options=("--check-steps", str(steps)))
    assert found.returncode == 0, found.stderr
    same_lines(found.stdout, alone(tmp_path, LOOPS, *loops))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "loss", "words"),
    [
        ("inputs = inputs - inputs.mean(0)", ENTROPY, "differ from those of one device"),
        pytest.param("for _ in inputs: torch.rand(3)", ENTROPY, "drawn different random numbers", marks=MORE),
        ("inputs = inputs + torch.tensor([[random.random()] for _ in inputs])", ENTROPY, "different random numbers"),
        pytest.param(
            "torch.distributions.Gamma(inputs.abs(), 1.0).sample()",
            ENTROPY,
            "script.py, line 11: torch._standard_gamma",
            marks=MORE,
        ),
        pytest.param(
            "pass",
            f"{ENTROPY} if number < 4 else (out**2 * inputs[:, :1]).sum() / torch.ones(len(out)).sum()",
            "not there",
            marks=MORE,
        ),
        (
            "'mean' in model._buffers or model.register_buffer('mean', torch.zeros(4)); model.mean += inputs.mean(0)",
            ENTROPY,
            "a buffer is that of a part of a batch, and not that of one device: Linear, mean",
        ),
        ("pass", f"({ENTROPY} - 0.6).abs() + 0.6", "a loss made of Abs chooses by the own rows"),
        pytest.param("next(zip(loader, loader))", ENTROPY, "two loops read one prepared loader at once", marks=MORE),
    ],
    ids=[
        "centred",
        "drawn for each sample",
        "by Python",
        "gamma",
        "later",
        "buffer",
        "flooding",
        "two loops",
    ],
)
def test_what_mixes_samples_is_refused_in_one_line(before: str, loss: str, words: str, tmp_path: Path) -> None:
    found = launched(tmp_path, written(tmp_path, MODEL.format(before=before, loss=loss)))
    assert (found.returncode, found.stdout) == (2, "")
    assert words in found.stderr
    assert "Traceback" not in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.slow
def test_an_optimizer_that_does_not_step_is_not_waited_for_and_columns_of_samples_are_named(tmp_path: Path) -> None:
    text = """
def by_column(rows):
    inputs, targets = torch.utils.data.default_collate(rows)
    return inputs.T, targets

model = torch.nn.Linear(4, 2)
both = [torch.optim.SGD(model.parameters(), 0.1), torch.optim.Adam(model.parameters(), 0.1)]
data = torch.utils.data.TensorDataset(torch.randn(72, 4), torch.randint(0, 2, (72,)))
model, *both, loader = fleet.prepare(model, *both, torch.utils.data.DataLoader(data, 6, collate_fn=by_column))
for columns, targets in loader:
    both[0].zero_grad()
    inputs = columns.T[fleet.rows.begin : fleet.rows.begin + len(targets)]
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    both[0].step()
print("over")
"""
    found = launched(tmp_path, written(tmp_path, text))
    assert (found.returncode, found.stdout) == (0, "over\n"), found.stderr
    assert found.stderr.count("Adam is prepared and has not stepped: its first steps are not compared") == 1
    assert found.stderr.count("as many entries in its second dimension as there are samples") == 1


@pytest.mark.slow
def test_what_is_drawn_for_two_copies_of_the_rows_and_begins_late_is_named(tmp_path: Path) -> None:
    twice = "torch.nn.functional.dropout(torch.cat([inputs, -inputs]).repeat(1, 2), 0.3)[: len(inputs), :4]"
    text = MODEL.format(before=f"inputs = inputs if number < 4 else {twice}", loss=ENTROPY)
    found = launched(tmp_path, written(tmp_path, text), options=("--shares", "equal"))
    assert found.returncode == 0, found.stderr
    lines = [line for line in found.stderr.splitlines() if "torch.dropout of shape (8, 8)" in line]
    assert len(lines) == 1, found.stderr
    assert "script.py, line 11) was not there in the steps that were compared" in lines[0]


@pytest.mark.slow
def test_dropout_of_rows_that_a_mask_has_chosen_is_refused(tmp_path: Path) -> None:
    text = MODEL.format(
        before="inputs = torch.nn.functional.dropout(inputs[:3].repeat(1, 2))[:, :4]", loss="out.pow(2).mean()"
    )
    found = launched(tmp_path, written(tmp_path, text), options=("--shares", "equal"))
    assert (found.returncode, found.stdout) == (2, "")
    assert "dropout was given other values in each process, and not as many as there are own rows" in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (1, "cpu:1 reads other rows of the same batch than cpu:0 and the process that checks"),
        pytest.param(2, "cpu:0, cpu:1 read other rows of the same batch than the process that checks", marks=MORE),
    ],
)
def test_data_that_differs_is_named_with_who_reads_it(rank: int, words: str, tmp_path: Path) -> None:
    text = MODEL.format(before="pass", loss=ENTROPY)
    other = f"data.tensors[0][:] *= 1 + (fleet.rank == {rank})"
    script = written(tmp_path, text.replace("\nloader =", f"\n{other}\nloader ="))
    found = launched(tmp_path, script)
    assert (found.returncode, found.stdout) == (2, ""), found.stderr
    (line,) = found.stderr.splitlines()
    assert words in line


@pytest.mark.slow
@pytest.mark.parametrize(("shares", "steps"), [("equal", "2"), ("cpu:0=4,cpu:1=3", "0")])
def test_numbers_that_are_taken_for_rows_by_chance_are_named(shares: str, steps: str, tmp_path: Path) -> None:
    text = MODEL.format(before="torch.rand(5); torch.rand(4, 2)", loss=ENTROPY)
    script = written(tmp_path, text.replace("(data, 8)", f"(data, {8 if shares == 'equal' else 7})"))
    found = launched(tmp_path, script, options=("--shares", shares, "--check-steps", steps))
    assert found.returncode == 2, found.stderr
    (line,) = found.stderr.splitlines()
    assert f"torch.rand of shape (4, 2) ({script}, line 11) has as many entries as this process has rows" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("late", "words"),
    [
        ("(out - out.mean(0)).pow(2).mean()", "Mean over dimension 0 may mix the samples of a batch"),
        (  # of as many entries as each of the two processes has rows
            "sum(((out[:, :1] * torch.ones(entries)).T.softmax(0) ** 2).mean() for entries in (5, 3))",
            "",
        ),
    ],
    ids=["mixes", "as many as a process has"],
)
def test_what_begins_after_the_first_steps_is_refused_where_it_mixes_samples(
    late: str, words: str, tmp_path: Path
) -> None:
    script = written(tmp_path, MODEL.format(before="pass", loss=f"{ENTROPY} + (0 if number < 5 else {late})"))
    found = launched(tmp_path, script, options=("--shares", "cpu:0=5,cpu:1=3"))
    assert (found.returncode, found.stdout) == ((2, "") if words else (0, "over\n")), found.stderr
    assert words in found.stderr
    assert "Traceback" not in found.stderr


FREED = """
import resource

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    numbers = [torch.ones(1 << 20) for _ in range(16)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first, *others = [faults() for _ in range(6)]
print(min(others) * 2 < first, first, others)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="takes the allocator of glibc")
def test_memory_that_a_step_frees_is_kept_for_the_next_one(tmp_path: Path) -> None:
    found = launched(tmp_path, written(tmp_path, FREED), devices="1xcpu")
    assert found.stdout.startswith("True"), found.stdout + found.stderr


def test_a_module_is_run_as_by_python(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("WORD = 'beside'\n")
    (package / "training.py").write_text(f"from .words import WORD\n{INIT}fleet.print(WORD, *sys.argv[1:])\n")
    words = [sys.executable, "-m", "hetero", "launch", "--devices", "2xcpu", "-m", "package.training", "-m", "5"]
    found = subprocess.run(
        words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (found.returncode, found.stdout) == (0, "beside -m 5\n"), found.stderr
    words[-3] = "package.trainng"
    found = subprocess.run(
        words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (found.returncode, "there is no module package.trainng" in found.stderr) == (2, True), found.stderr


@pytest.mark.slow
def test_without_strictness_a_run_goes_on_and_says_so(tmp_path: Path) -> None:
    script = written(tmp_path, MODEL.format(before="inputs = inputs - inputs.mean(0)", loss=ENTROPY))
    found = launched(tmp_path, script, options=("--no-strict",))
    assert (found.returncode, found.stdout) == (0, "over\n")
    assert "are not those of one device, and --no-strict goes on" in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "code", "words"),
    [
        ("fleet.rank == 1 and number == 3 and os.kill(os.getpid(), signal.SIGKILL)", 137, "cpu:1 was ended by SIGKILL"),
        pytest.param(
            "fleet.rank == 1 and number == 3 and sys.exit(0)",
            1,
            "cpu:1 ended by itself with exit code 0 after 3 steps, and others have steps left",
            marks=MORE,
        ),
        (
            "fleet.step(lambda: (fleet.rank == 1 and number == 3 and os._exit(0), fleet.wait()))",
            1,
            "cpu:1 ended by itself with exit code 0 after 3 steps, and others have steps left",
        ),
    ],
    ids=["killed", "early", "early in a step"],
)
def test_a_process_that_ends_takes_all_with_it(before: str, code: int, words: str, tmp_path: Path) -> None:
    found = launched(tmp_path, written(tmp_path, MODEL.format(before=before, loss=ENTROPY)))
    assert found.returncode == code
    assert words in found.stderr
    assert "over" not in found.stdout
    assert "GroupBroken" not in found.stderr


MISTAKES = """
import multiprocessing
from torch.utils.data import DataLoader, Subset

def of(function, *args):
    try:
        return function(*args)
    except (hetero.errors.HeteroError, RuntimeError) as error:
        return error

torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(32, 4))
model, lonely = torch.nn.Linear(4, 2), torch.nn.Linear(2, 2)
optimizer, others = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(lonely.parameters(), 0.0)
fleet.print(of(model(torch.ones(8, 4)).sum().backward))
fleet.print(of(fleet.prepare, torch.nn.LazyLinear(2)))
fleet.print(of(fleet.prepare, DataLoader(Subset(data, range(max(0, fleet.rank), 32)), 8)))
model, optimizer, loader = fleet.prepare(model, optimizer, DataLoader(data, 8, num_workers=2))
fleet.print(fleet.prepare(loader) is loader, hetero.train.init() is fleet, fleet.prepare(model) is model)
for (inputs,) in loader:
    optimizer.zero_grad()
    loss = lonely(model(inputs)).pow(2)
    refused = [of(loss.backward), (loss.mean().backward(), of(others.step))[1]]
    optimizer.step()
    optimizer.step()
fleet.print(*refused, sep="\\n")
fleet.print("batch", fleet.global_batch, repr(model.weight.sum().item()))
inputs = next(iter(loader))[0]
gradients = torch.autograd.grad(model(inputs).pow(2).mean(), list(model.parameters()))
for parameter, gradient in zip(model.parameters(), gradients):
    parameter.grad = gradient
fleet.print(of(optimizer.step))
context = multiprocessing.get_context("fork")
answers = context.Queue()
child = context.Process(target=lambda: answers.put(str(of(fleet.sum, 1.0))))
child.start()
fleet.print(answers.get(timeout=60))
child.join()
os.environ["WORLD_SIZE"] = "2"
try:
    torch.distributed.init_process_group("gloo")
except ValueError as error:
    fleet.print(type(error).__name__)
"""
SAID = [
    "backward() is called before anything is prepared",
    "LazyLinear has parameters whose shapes are not known yet",
    "the processes prepare different loaders: 4 batches of 32 samples in cpu:0, 4 of 31 in cpu:1, 4 of 30 in the check",
    "True True True",
    "backward() was called on a tensor of shape",
    "SGD steps 2 parameters that were not prepared",
    "batch 8 ",
    "SGD steps by gradients that no backward() has brought",
    "was started by the script itself, and takes no part",
    "ValueError",
]


@pytest.mark.servers
@pytest.mark.slow
def test_what_a_script_does_wrong_is_said(tmp_path: Path) -> None:
    """Each mistake is made and caught, and the training goes on as on one device."""
    script = written(tmp_path, MISTAKES)
    found = launched(tmp_path, script)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    for line, words in zip(lines, SAID, strict=True):
        assert words in line
    plain = next(line for line in alone(tmp_path, script).splitlines() if line.startswith("batch 8 "))
    wanted = float(plain.split()[2])
    assert float(lines[6].split()[2]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torch.distributed.init_process_group('gloo')", "line 3: torch.distributed is not set up by `hetero launch`"),
        pytest.param(
            "import torch.multiprocessing\n"
            "if __name__ == '__main__':\n    torch.multiprocessing.spawn(print, args=(1,), nprocs=2)\n",
            "the script starts several processes that call hetero.train.init()",
            marks=MORE,
        ),
        ("", "the script sets CUDA_VISIBLE_DEVICES to '3', and this process has ''"),
    ],
    ids=["distributed", "spawned", "visible"],
)
def test_another_way_of_starting_processes_is_refused(text: str, words: str, tmp_path: Path) -> None:
    script = written(tmp_path, text)
    if not text:
        script.write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '3'\n" + INIT)
    if "spawn" in text:  # init is called in the processes that are started only
        script.write_text(
            f"import torch, hetero\ndef work(*_):\n    hetero.train.init().wait()\n{text.replace('print', 'work')}"
        )
    found = launched(tmp_path, script, options=("--check-steps", "0"))
    assert found.returncode == 2, found.stderr
    assert words in found.stderr
    assert "Traceback" not in found.stderr


CARRIED = """
fleet.wait()
state, rows = None, 0
for length in (8, 8, 6):
    batch = fleet.split(torch.ones(length, 2))
    state = batch if state is None else state + batch
fleet.wait()
"""


@pytest.mark.slow
def test_state_that_cannot_be_carried_over_unequal_parts_is_explained(tmp_path: Path) -> None:
    script = written(tmp_path, CARRIED)
    found = launched(tmp_path, script, options=("--check-steps", "0"))
    assert found.returncode == 1
    assert "RuntimeError: The size of tensor" in found.stderr
    assert "needs --shares equal" in found.stderr


def test_a_script_that_is_started_otherwise_is_told(tmp_path: Path) -> None:
    script = written(tmp_path, "")
    words = [sys.executable, str(script)]
    by_torchrun = {**environment(tmp_path), "WORLD_SIZE": "2", "RANK": "0"}
    found = subprocess.run(words, env=by_torchrun, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "was started by another launcher" in found.stderr
    assert "hetero launch" in found.stderr


def test_a_launch_that_cannot_begin_says_why(tmp_path: Path) -> None:
    for words, said in (
        (("nowhere.py",), "there is no such file"),
        (("--prints", "none", __file__), "give main or all"),
        (("--check-only", "--check-steps", "0", __file__), "give 1 or more"),
        (("--shares", "cpu:0", __file__), "samples as in"),
        (("--engine", "inline", __file__), "engine inline has no use here"),
        (("--devices", "h1/cpu:0", __file__), "h1/cpu:0 is on another host; give --engine ray"),
        (("--devices", "1xcpu", "--working-dir", ".", __file__), "no device is on another host"),
    ):
        found = subprocess.run(
            [sys.executable, "-m", "hetero", "launch", *words],
            env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert found.returncode == 2, found.stderr
        assert said in found.stderr
        assert "Traceback" not in found.stderr

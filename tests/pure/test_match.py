"""Choosing devices: who is refused and why, who is beaten, what it costs, and how a fleet and prices are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hetero.advise.estimate import Workload
from hetero.advise.fleet import Kind, group_of, read_fleet
from hetero.advise.match import MatchLimits, choose, match
from hetero.advise.prices import Prices, age_of, live_prices, own_price, read_prices
from hetero.advise.replica_mix import mix, read_stream
from hetero.catalog.load import find
from hetero.cli.plan import read_workload
from hetero.floor.errors import BadValueError, GraphError, NothingFitsError
from hetero.plan.sizing.scores import CandidateFigures, pareto, ranks, scores
from tests.matrices import DGX1_V100

WORK = Workload("Llama-3.1-8B", batch=4, prompt=512, context=1024, framework="vllm")


def test_a_device_that_is_too_small_is_refused_with_how_many_it_would_take() -> None:
    refused = {one.device: one.refused for one in match(WORK, "1xT4,1xH100-SXM") if one.refused}
    assert list(refused) == ["T4"]
    assert "it takes 2 with" in refused["T4"]
    assert "there is 1" in refused["T4"]


def test_a_device_without_a_needed_capability_is_refused_with_what_it_has() -> None:
    found = choose(WORK, read_fleet("1xA100-SXM-80GB,1xH100-SXM"), MatchLimits(needs=("fp8",)))
    assert [one.device for one in found.matches] == ["H100-SXM"]
    assert found.refused[0].refused.startswith("it lacks fp8; it has tensor_cores")


def test_a_limit_of_latency_refuses_who_is_slower_and_keeps_the_others() -> None:
    all_ = choose(WORK, read_fleet("1xH100-SXM,1xL4"))
    slow = max(one.latency_s or 0.0 for one in all_.matches)
    found = choose(WORK, read_fleet("1xH100-SXM,1xL4"), MatchLimits(latency_s=0.99 * slow))
    assert [one.device for one in found.refused] == ["L4"]
    assert "latency" in found.refused[0].refused


def test_a_limit_of_throughput_takes_as_many_copies_as_it_needs() -> None:
    one = choose(WORK, read_fleet("8xH100-SXM")).matches
    single = next(m for m in one if m.count == 1)
    each = (single.throughput_per_s or 0.0) / single.replicas
    found = choose(WORK, read_fleet("8xH100-SXM"), MatchLimits(throughput_per_s=2.5 * each))
    assert next(m for m in found.matches if m.count == 1).replicas == 3
    with_few = choose(WORK, read_fleet("1xH100-SXM"), MatchLimits(throughput_per_s=2.5 * each))
    assert not with_few.matches
    assert "are asked for" in with_few.refused[0].refused


def test_a_limit_of_money_refuses_the_dear_and_those_without_a_price() -> None:
    fleet = "1xH100-SXM,1xA100-SXM-80GB,1xL4"
    found = choose(WORK, read_fleet(fleet), MatchLimits(usd_per_hour=2.0))
    assert [one.device for one in found.matches] == ["A100-SXM-80GB"]
    told = {one.device: one.refused for one in found.refused}
    assert "above $2.00" in told["H100-SXM"]
    assert "no price is known" in told["L4"]


def test_own_prices_go_before_the_catalogs() -> None:
    prices = Prices(own={"H100-SXM": own_price(1.25, "mine", "2026-11-01")})
    one = choose(WORK, read_fleet("2xH100-SXM"), prices=prices).matches[0]
    assert one.price is not None
    assert one.price.origin == "yours"
    assert one.usd_per_hour == 1.25 * one.devices


def test_reasons_name_memory_latency_load_and_price_with_its_age() -> None:
    told = match(WORK, "1xH100-SXM")[0].explain()
    for word in ("holds the model on 1", "for the batch (80 %:", "tokens/s under load", "a million tokens", "old)"):
        assert word in told


def test_one_that_another_beats_in_everything_is_not_marked() -> None:
    rows = [
        CandidateFigures(1.0, 9.0, 2.0, 300.0),
        CandidateFigures(1.5, 8.0, 2.5, 310.0),
        CandidateFigures(2.0, 9.5, 9.0, 900.0),
    ]
    assert pareto(rows) == [True, False, True]


def test_an_unknown_price_gains_nothing() -> None:
    assert scores([CandidateFigures(1.0, 9.0, None), CandidateFigures(1.0, 9.0, 5.0)]) == [1.0, 1.0]


def test_matches_that_are_nearer_than_they_are_sure_share_a_rank() -> None:
    rows = [
        CandidateFigures(1.0, 10.0, spread=1.5),
        CandidateFigures(1.9, 6.0, spread=1.5),
        CandidateFigures(9.0, 1.0, spread=1.5),
    ]
    assert ranks(rows, scores(rows)) == [1, 1, 3]


def test_a_group_has_the_link_of_its_topology_and_names_its_members(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(DGX1_V100)
    parts = [{"id": f"g{at}", "name": "V100-SXM-32GB"} for at in range(3)]
    links = [{"from": "g0", "to": "g1", "bandwidth": "10GB/s"}, {"from": "g1", "to": "g2", "bandwidth": "50GB/s"}]
    file = tmp_path / "fleet.json"
    rows = [{"name": "V100-SXM-32GB", "count": 3}]
    file.write_text(json.dumps({"devices": rows, "topology": {"parts": parts, "links": links}}))
    spec, members = group_of(read_fleet(str(file))[0], 2)
    assert members == ("g1", "g2")
    assert spec.link_bytes_per_s == 50e9


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("devices:\n- {name: H10-SXM}\n", r"devices\[0\]: the catalog has no 'H10-SXM'; did you mean 'H100-SXM'"),
        ("devices:\n- {name: H100-SXM, usd_per_hour: 0}\n", r"devices\[0\]: the price is 0"),
        ("devices:\n- {name: H100-SXM, count: 0}\n", r"count is 0"),
        ("devices:\n- {name: H100-SXM, cuont: 2}\n", "did you mean 'count'"),
        ("devices:\n- {name: H100-SXM, usd_per_hour: 1, day: soon}\n", "'soon' is no day"),
        ("devices: []\n", "devices is"),
        ("hello\n", "holds 'hello'"),
        ("a: [\n", "fleet.yaml:2: this is not YAML"),
    ],
)
def test_a_wrong_fleet_file_is_told_in_one_line(tmp_path: Path, rows: str, told: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(rows)
    with pytest.raises(BadValueError, match=told) as caught:
        read_fleet(str(file))
    assert "\n" not in str(caught.value)


def test_a_fleet_file_with_a_link_to_nowhere_is_told_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "devices: [H100-SXM]\ntopology:\n  parts: [{id: a}]\n  links: [{from: a, to: b, bandwidth: 1GB/s}]\n"
    )
    with pytest.raises(GraphError, match=r"topology: links\[0\].to: no part is called 'b'"):
        read_fleet(str(file))


@pytest.mark.parametrize("word", ["0xH100-SXM", "-1xH100-SXM", "twoxH100-SXM", "1xH100", "H100-SXM:0", "nothing"])
def test_words_that_name_no_fleet_are_refused(word: str) -> None:
    with pytest.raises(BadValueError):
        read_fleet(word)


@pytest.mark.parametrize(
    "text", ["H100-SXM: 0", "H100-SXM: -2", "H100-SXM: cheap", "H10: 2", "- 1", "H100-SXM: {usd: 2}"]
)
def test_wrong_prices_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(BadValueError):
        read_prices(file)


def test_an_age_is_told_in_days_or_months() -> None:
    assert age_of("2020-01").endswith("months old")
    assert "today" in age_of("2999-01-01")


def test_without_gpuhunt_live_prices_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("hetero.advise.prices.import_module", refusing)
    found, note = live_prices([find("H100-SXM")])
    assert found == {}
    assert "gpuhunt, which is not installed" in note


def test_a_mix_of_kinds_is_not_dearer_than_the_best_kind_and_serves_all() -> None:
    streams = [read_stream("512/128@8"), read_stream("4000/400@1")]
    prices = Prices(own={name: own_price(usd, name) for name, usd in {"H100-SXM": 2.5, "L4": 0.5, "A30": 0.9}.items()})
    found = mix(WORK, streams, read_fleet("4xH100-SXM,8xL4,8xA30"), prices=prices)
    assert found.single is not None
    assert found.mix.usd_per_hour <= found.single.usd_per_hour
    for at, stream in enumerate(streams):
        assert sum(share[at] for share in found.mix.shares.values()) == pytest.approx(stream.per_s)
    assert "an hour" in found.explain()


def test_a_mix_without_any_price_says_how_to_give_one() -> None:
    with pytest.raises(NothingFitsError, match="--prices"):
        mix(WORK, [read_stream("512/128@8")], read_fleet("8xL4"))


@pytest.mark.parametrize("word", ["512@4", "512/128", "0/128@4", "512/128@0", "a/b@c"])
def test_a_wrong_stream_is_refused(word: str) -> None:
    with pytest.raises(BadValueError, match="write PROMPT/ANSWER@PER_SECOND"):
        read_stream(word)


@pytest.mark.parametrize(
    "limits", [{"latency_s": -1.0}, {"throughput_per_s": -1.0}, {"usd_per_hour": float("nan")}, {"needs": ("fp9",)}]
)
def test_wrong_limits_are_refused(limits: Mapping[str, Any]) -> None:
    with pytest.raises(BadValueError):
        MatchLimits(**limits)


def test_options_go_before_a_workload_file(tmp_path: Path) -> None:
    file = tmp_path / "work.yaml"
    file.write_text("model: Llama-3.1-8B\nweights: fp8\nneeds: [fp8]\nstreams: [512/128@4]\n")
    work, needs, streams = read_workload(str(file), {"weights": "bf16", "batch": None})
    assert (work.weights, needs, streams) == ("bf16", ("fp8",), ("512/128@4",))
    file.write_text("model: Llama-3.1-8B\nwieghts: fp8\n")
    with pytest.raises(BadValueError, match="did you mean 'weights'"):
        read_workload(str(file), {})
    file.write_text("weights: fp8\n")
    with pytest.raises(BadValueError, match="names no model"):
        read_workload(str(file), {})


TWO_HOSTS = """
devices:
- {name: H100-SXM, count: 4, host: a, rack: r0}
- {name: H100-SXM, count: 4, host: b, rack: r1}
leases:
- {workload: training, devices: [a/cuda:0, a/cuda:1, a/cuda:2]}
"""
LARGE = Workload("Llama-3.1-70B", prompt=512, context=768, framework="vllm")


def _fleet(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    return read_fleet(str(file))


def test_a_group_is_chosen_from_what_nobody_holds_and_planning_holds_nothing(tmp_path: Path) -> None:
    kinds = _fleet(tmp_path, TWO_HOSTS)
    assert [(kind.spec.name, kind.count) for kind in kinds] == [("H100-SXM", 8)]
    for _ in range(2):
        found = choose(LARGE, kinds)
        by_count = {one.count: one.groups for one in found.matches}
        assert by_count[4] == (("b/cuda:0", "b/cuda:1", "b/cuda:2", "b/cuda:3"),)
        assert by_count[2] == (("b/cuda:0", "b/cuda:1"), ("b/cuda:2", "b/cuda:3"))
        assert "b/cuda:0, b/cuda:1" in found.matches[0].explain()


def test_a_workload_is_kept_away_from_by_device_host_or_rack(tmp_path: Path) -> None:
    kinds = _fleet(tmp_path, TWO_HOSTS)
    assert len(kinds[0].copies(1)) == 5
    assert len(kinds[0].copies(1, MatchLimits(apart=("training",)).terms)) == 4
    assert len(kinds[0].copies(1, MatchLimits(apart=("training",), apart_by="device").terms)) == 5
    small = choose(WORK, kinds, MatchLimits(apart=("training",)))
    assert all(name.startswith("b/") for one in small.matches for group in one.groups for name in group)


def test_a_refusal_tells_who_holds_what_and_what_the_rest_does_not_share(tmp_path: Path) -> None:
    held = TWO_HOSTS + "- {workload: web, devices: [b/cuda:1, b/cuda:2, b/cuda:3]}\n"
    (refused,) = choose(LARGE, _fleet(tmp_path, held)).refused
    assert (
        "there are 8, 3 of them held by training, 3 of them held by web; of those that are free no 2" in refused.refused
    )
    (refused,) = choose(LARGE, _fleet(tmp_path, TWO_HOSTS), MatchLimits(together="numa")).refused
    assert "no 2 share the same NUMA node" in refused.refused


def test_a_copy_whose_devices_must_be_linked_takes_those_that_are(tmp_path: Path) -> None:
    parts = [{"id": f"a/cuda:{at}", "name": "H100-SXM"} for at in range(4)] + [{"id": "a/sw", "kind": "switch"}]
    links = [{"from": f"a/cuda:{at}", "to": "a/sw", "kind": "pcie", "bandwidth": "30GB/s"} for at in range(4)]
    links.append({"from": "a/cuda:1", "to": "a/cuda:2", "kind": "nvlink", "bandwidth": "300GB/s"})
    document = {"devices": [{"name": "H100-SXM", "count": 4}], "topology": {"parts": parts, "links": links}}
    kinds = _fleet(tmp_path, json.dumps(document))
    found = choose(LARGE, kinds, MatchLimits(together="link:nvlink"))
    assert [one.groups for one in found.matches] == [(("a/cuda:1", "a/cuda:2"),)]
    assert choose(LARGE, kinds).matches[0].groups[0] == ("a/cuda:1", "a/cuda:2"), "the fastest of all pairs"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("leases: 3", "leases is 3"),
        ("leases: [x]", r"leases\[0\] is 'x'"),
        ("leases: [{workload: x}]", r"leases\[0\] names no devices"),
        ("leases: [{devices: [h0/cuda:0]}]", "workload is None"),
        (
            "leases: [{workload: x, devices: [h0/cuda:7]}]",
            r"leases\[0\]: the fleet has no device 'h0/cuda:7'; did you mean",
        ),
        ("leases: [{workload: x, name: H100-SXM, count: 5}]", "x cannot hold 5 of"),
        ("leases: [{workload: x, name: H10-SXM, count: 1}]", "did you mean 'H100-SXM'"),
        ("leases: [{workload: x, device: [h0/cuda:0]}]", "did you mean 'devices'"),
    ],
)
def test_a_wrong_lease_in_a_fleet_file_is_told_in_one_line(tmp_path: Path, rows: str, told: str) -> None:
    with pytest.raises(BadValueError, match=told) as caught:
        _fleet(tmp_path, f"devices: [{{name: H100-SXM, count: 4}}]\n{rows}\n")
    assert "\n" not in str(caught.value)


def test_a_wrong_word_for_what_devices_share_is_told() -> None:
    with pytest.raises(BadValueError, match="did you mean 'rack'"):
        MatchLimits(together="rak")


def test_kinds_that_no_pool_keeps_are_counted() -> None:
    kinds = (Kind(find("H100-SXM"), 4),)
    assert {one.count: one.replicas for one in choose(LARGE, kinds).matches} == {2: 2, 4: 1}
    (refused,) = choose(LARGE, (Kind(find("L4"), 2),)).refused
    assert refused.refused.endswith("and there are 2")

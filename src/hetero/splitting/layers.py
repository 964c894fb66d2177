"""Cutting a model into a chain of layers, each of which takes one tensor and gives one.

In: a torch module. Out: its layers in order, which share the model's parameters, or the reason why it cannot be cut.
It must not change the model, and it knows no device.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import fx, nn

from hetero.floor.errors import BadValueError

__all__ = ["Layer", "chain_of", "run_through"]


@dataclass(frozen=True, slots=True)
class Layer:
    """Consecutive parts of a model that stay together.

    Attributes
    ----------
    name
        Where it is in the model, as in 'layer1.0'.
    kind
        What it is, as in 'Conv2d'.
    module
        A torch module that takes one tensor.
    """

    name: str
    kind: str
    module: torch.nn.Module


def chain_of(model: object, training: bool) -> list[Layer]:
    """Cut a model wherever nothing but one value goes on.

    Parameters
    ----------
    training
        True where the layers are to be trained.

    Raises
    ------
    BadValueError
        It cannot be cut; the message says why.

    Notes
    -----
    An `nn.Sequential` is cut between its children, those in it likewise. The forward function of any other module is
    traced with torch.fx: residual blocks stay whole, since two values go through them. Layers that share a parameter
    stay together with all between them.
    """
    if isinstance(model, nn.Sequential):
        layers = [Layer(name, type(part).__name__, part) for name, part in _children(model, "")]
    else:
        layers = _segments(model, training)
    layers = _with_shared_parameters(layers)
    if len(layers) < 2:
        raise BadValueError(
            f"{type(model).__name__} cannot be cut: more than one value goes on everywhere, or it is one layer",
            remedy="give an nn.Sequential, or a model whose forward passes one tensor from part to part",
        )
    return layers


def _children(model: torch.nn.Module, before: str) -> Iterator[tuple[str, object]]:
    for name, part in model._modules.items():  # named_children() leaves out a part that stands there twice
        if isinstance(part, nn.Sequential) and len(part):
            yield from _children(part, f"{before}{name}.")
        else:
            yield f"{before}{name}", part


# --- tracing -----------------------------------------------------------------------------------------------


def _traced(model: torch.nn.Module, training: bool) -> fx.GraphModule:
    modes = [(module, module.training) for module in model.modules()]
    try:
        if not training or not model.training:
            model.train(training)
        traced = fx.symbolic_trace(model)
    except Exception as error:
        raise BadValueError(
            f"{type(model).__name__} cannot be cut: its forward cannot be traced: {' '.join(str(error).split())[:200]}",
            remedy="give an nn.Sequential of its parts",
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise BadValueError(
            f"{type(model).__name__} takes {len(inputs)} inputs, and a chain of layers takes one tensor",
            remedy="wrap it in a module that takes one",
        )
    return traced


def _segments(model: object, training: bool) -> list[Layer]:
    traced = _traced(model, training)
    source, *nodes = (node for node in traced.graph.nodes if node.op != "output")
    place = {node: number for number, node in enumerate(traced.graph.nodes)}
    last_use = {node: max((place[user] for user in node.users), default=place[node]) for node in (source, *nodes)}
    layers, begin, reach, entry = [], 0, last_use[source], source
    for number, node in enumerate(nodes):
        if training:
            _refuse_fixed_dropout(node)
        is_last = number == len(nodes) - 1
        if is_last or (reach <= place[node] and node.op != "get_attr"):
            layers.append(_segment(model, traced, entry, nodes[begin : number + 1]))
            begin, entry = number + 1, node
        reach = max(reach, last_use[node])
    return layers


def _refuse_fixed_dropout(node: fx.Node) -> None:
    name = getattr(node.target, "__name__", "")
    if "dropout" in name and node.kwargs.get("training") is True:
        raise BadValueError(
            f"{name} in the forward function would drop out in every pass, also when the model is not trained",
            remedy="use nn.Dropout as a part of the model",
        )


def _segment(model: object, traced: object, entry: object, nodes: Sequence[object]) -> Layer:
    graph = fx.Graph()
    known = {entry: graph.placeholder("x")}
    for node in nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(known[nodes[-1]])
    return Layer(*_name_and_kind(model, nodes), fx.GraphModule(traced, graph))


def _name_and_kind(model: torch.nn.Module, nodes: Sequence[fx.Node]) -> tuple[str, str]:
    paths = [node.target.split(".") for node in nodes if node.op == "call_module"]
    name = ".".join(parts[0] for parts in takewhile(lambda parts: len({*parts}) == 1, zip(*paths, strict=False)))
    if name:
        return name, type(model.get_submodule(name)).__name__
    kind = str(getattr(nodes[0].target, "__name__", nodes[0].target)) if len(nodes) == 1 else "several"
    return str(nodes[-1].name), kind


# --- layers that stay together -----------------------------------------------------------------------------


def _with_shared_parameters(layers: list[Layer]) -> list[Layer]:
    first_use: dict[int, int] = {}
    joined = list(range(len(layers)))
    for number, layer in enumerate(layers):
        for parameter in layer.module.parameters():
            begin = joined[first_use.setdefault(id(parameter), number)]
            joined[begin : number + 1] = [begin] * (number + 1 - begin)
    groups: dict[int, list[Layer]] = {}
    for number, layer in zip(joined, layers, strict=True):
        groups.setdefault(number, []).append(layer)
    return [_joined(group) for group in groups.values()]


def _joined(layers: Sequence[Layer]) -> Layer:
    if len(layers) == 1:
        return layers[0]
    names = f"{layers[0].name}…{layers[-1].name}"
    return Layer(names, "several", nn.Sequential(*(layer.module for layer in layers)))


# --- the sample --------------------------------------------------------------------------------------------


def run_through(layers: Sequence[Layer], sample: object) -> tuple[list[Layer], list[object]]:
    """Run a sample through copies of the layers here, one after the other.

    Returns
    -------
    tuple
        The layers, those that pass several tensors on joined with the next; and the input of each and the output.

    Raises
    ------
    BadValueError
        The sample does not fit a layer, or the model gives more than one tensor.
    """
    joined: list[Layer] = []
    values, held = [sample], []
    value = sample
    for layer in layers:
        held.append(layer)
        value = _output(layer, value, sample)
        if isinstance(value, torch.Tensor):
            joined.append(_joined(held))
            values.append(value)
            held = []
    if held:
        raise BadValueError(
            f"layer {held[-1].name} ({held[-1].kind}) gives {_described(value)}, and the model must give one tensor",
            remedy="wrap it in a module that gives one tensor",
        )
    return joined, values


def _output(layer: Layer, value: object, sample: torch.Tensor) -> object:
    module = copy.deepcopy(layer.module).eval()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return module(value.clone() if isinstance(value, torch.Tensor) else value)
    except Exception as error:
        given = f"a sample of shape {tuple(sample.shape)} and {str(sample.dtype).removeprefix('torch.')}"
        raise BadValueError(
            f"{given} does not fit layer {layer.name} ({layer.kind}), which got {_described(value)}: "
            f"{' '.join(str(error).split())[:200]}",
            remedy="give a micro-batch as the model takes it, and let every layer take one tensor",
        ) from error


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{len(value)} values ({', '.join(type(part).__name__ for part in value)})"
    return f"a {type(value).__name__}"

"""Random numbers of a whole batch, drawn alike by every process and cut to its own rows.

In: which rows of the global batch this process has. Out: torch's random functions, which draw what one process with
the whole batch would have drawn, and return the own rows. It must not draw anything that one process would not have
drawn, and refuses by name what depends on the other rows.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _device
from torch.utils.weak import WeakIdKeyDictionary

from hetero.train.keyed_random import RandomRefusedError
from hetero.train.launch.draw_log import DrawLog, place_of_script
from hetero.train.recurrent_layers import KERNELS, RecurrentCall, lengths_of, packed_rows

__all__ = ["Rows", "WholeDraws"]

_ALPHA = 1.7580993408473766
_bernoulli_ = torch.Tensor.bernoulli_
_attention = torch.nn.functional.scaled_dot_product_attention

_Draw = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of a global batch a process has.

    Parameters
    ----------
    begin
        The first of them, from 0.
    count
        How many they are.
    whole
        How many rows the global batch has.
    """

    begin: int
    count: int
    whole: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """The dimension of a shape that is the batch, and the rows of it."""

    dim: int
    rows: Rows

    def widened(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape of the own rows with the rows of all."""
        return (*shape[: self.dim], self.rows.whole, *shape[self.dim + 1 :])

    def part(self, whole: Tensor) -> Tensor:
        return whole.narrow(self.dim, self.rows.begin, self.rows.count)

    def own(self, whole: Tensor) -> Tensor:
        """Return a copy of the own rows, dense, its dimensions in the same order in memory."""
        return self.part(whole).clone()

    def stretched(self, own: Tensor) -> Tensor:
        """Return an empty tensor for all rows that lies in memory as one process would have it.

        The order in which kernels draw follows the strides. Dimensions outside the batch in memory move apart.
        """
        shape = self.widened(own.shape)
        if self.rows.count > 1 and own.is_contiguous():
            return torch.empty(shape, dtype=own.dtype, device=own.device)
        each, ties = own.stride(self.dim), self.rows.count <= 1
        apart = (self.rows.whole - max(self.rows.count, 1)) * each
        strides = [
            stride + apart * max(1, stride // (max(self.rows.count, 1) * each))
            if each and dim != self.dim and (stride > each or (ties and stride == each and size > 1))
            else stride
            for dim, (size, stride) in enumerate(zip(own.shape, own.stride(), strict=True))
        ]
        return torch.empty_strided(shape, strides, dtype=own.dtype, device=own.device)

    def placed(self, value: Tensor, dims: int, fill: float) -> Tensor:
        """Return a parameter of a distribution for all rows: the own in their place, the others harmless.

        Parameters
        ----------
        value
            A tensor that is broadcast to `dims` dimensions; anything else is returned as it is.
        dims
            How many dimensions the numbers drawn have.
        fill
            For the rows of others.
        """
        dim = self.dim - dims + value.dim() if isinstance(value, Tensor) else -1
        if dim < 0 or value.shape[dim] != self.rows.count:
            return value
        here = _Cut(dim, self.rows)
        once = value
        for repeated in (d for d in range(value.dim()) if value.stride(d) == 0 and value.shape[d] > 1):
            once = once.narrow(repeated, 0, 1)
        if once.shape[dim] != self.rows.count:  # the same for each row
            return once.expand(here.widened(value.shape))
        whole = here.stretched(once).fill_(fill)
        here.part(whole).copy_(once)
        return whole.expand(here.widened(value.shape))


class WholeDraws:
    """Replaces the functions of torch that draw by such as draw for a whole batch and return the own rows.

    Attributes
    ----------
    rows
        Which rows of the batch this process has; None to draw as torch does.
    folded
        Whether a first dimension that is a multiple of the own rows holds several entries a sample, in their order
        (a batch flattened with its positions). Otherwise such numbers are drawn as torch draws them.
    dim
        Where the batch is taken to be in a shape with several dimensions of so many rows, unless the same function was
        seen before with as many dimensions and one of that size.
    log
        What was drawn: what had as many entries before, when this process had another number of rows, is not cut.
    gathered
        What returns one number of each row of the whole batch, given those of the own; all processes call it alike.

    Notes
    -----
    What is drawn has the rows of the batch where its shape has a dimension of `rows.count`. Numbers
    drawn into parameters are never cut, nor those that other threads of Python draw. Each process that holds the same
    state of the generator holds the same afterwards, that of one process which drew everything, and on the host the
    numbers are the same to the bit. A compiled function draws as torch does, and so does what draws inside a library's
    own kernels: compare the states of the generators afterwards. Recurrent networks with dropout are computed layer by
    layer.

    Functions are found in torch's namespaces when they are called: what a script imported by name before `install`
    (``from torch import randn``) is not cut. Install first.

    Examples
    --------
    >>> import torch
    >>> from hetero.train.launch.whole_draws import Rows, WholeDraws
    >>> draws, parts = WholeDraws(), []
    >>> with draws:
    ...     for draws.rows in (Rows(0, 2, 5), Rows(2, 3, 5)):
    ...         _ = torch.manual_seed(0)
    ...         parts.append(torch.randn(draws.rows.count, 4))
    >>> _ = torch.manual_seed(0)
    >>> torch.equal(torch.cat(parts), torch.randn(5, 4))
    True
    """

    def __init__(self) -> None:
        self.rows: Rows | None = None
        self.folded = False
        self.dim = 0
        self._usual: dict[tuple[str, int], int] = {}
        self.log = DrawLog()
        self.gathered: Callable[[Tensor], Tensor] | None = None
        self._orders, self._whole_lengths = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self._thread = 0
        self._heads = 1
        self._replaced: list[tuple[object, str, bool, object]] = []

    def install(self) -> None:
        """Replace torch's functions, for this thread; a second call does nothing."""
        if self._replaced:
            return
        self._thread = threading.get_ident()
        _device._device_constructors()  # torch keeps a table of these functions: fill it before they are replaced
        for owner, names, draw in _DRAWING:
            for name in names:
                original = getattr(owner, name)
                self._replaced.append((owner, name, name in vars(owner), original))
                setattr(owner, name, self._replacement(name, original, draw))
        self._replaced.append((PackedSequence, "__new__", True, PackedSequence.__new__))
        PackedSequence.__new__ = self._remembering(PackedSequence.__new__)

    def uninstall(self) -> None:
        """Put torch's own functions back."""
        while self._replaced:
            owner, name, is_own, original = self._replaced.pop()
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

    def __enter__(self) -> WholeDraws:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def _replacement(self, name: str, original: _Draw, draw: _Draw) -> Tensor:
        def drawn(*args: object, **options: object) -> Tensor:
            if torch.compiler.is_compiling() or self.rows is None or not self._is_here():
                return original(*args, **options)
            return draw(self, name, original, *args, **options)

        drawn.__name__, drawn.__qualname__, drawn.__doc__ = name, name, getattr(original, "__doc__", None)
        known = torch.jit._builtins._find_builtin(original)
        if known is not None:
            torch.jit._builtins._register_builtin(drawn, known)
        return drawn

    def _remembering(self, new: _Draw) -> Tensor:
        """Return what makes packed sequences and remembers the order of their samples, which kernels are not told."""

        def remembered(*args: object, **options: object) -> Tensor:
            found = new(*args, **options)
            if found.sorted_indices is not None:
                self._orders[found.batch_sizes] = found.sorted_indices
            return found

        return remembered

    def _is_here(self) -> bool:
        """Return whether the thread is the one that installed, or one in which torch goes backwards for it."""
        return threading.get_ident() == self._thread or type(threading.current_thread()) is threading._DummyThread

    def _cut(self, name: str, shape: Sequence[int], *, folds: bool = True) -> _Cut | None:
        """Return where a shape has the batch; None where nothing is to be cut.

        Parameters
        ----------
        folds
            Whether a first dimension may have several entries of each row.
        """
        rows, found, each = self.rows, None, self._heads
        assert rows is not None
        shape, place = tuple(shape), place_of_script()
        if not self.log.is_fixed(name, shape, place):
            matching = [dim for dim, size in enumerate(shape) if size == rows.count * each]
            usual = self._usual.get((name, len(shape)), self.dim)
            if matching:
                found = usual if usual in matching else matching[0]
            if len(matching) == 1:
                self._usual[name, len(shape)] = matching[0]
            if found is None and folds and self.folded and shape and rows.count and shape[0] % rows.count == 0:
                found, each = 0, shape[0] // rows.count
            if found is None:
                self.log.fix(name, shape, place)
        cut = None
        if found is not None and rows.count != rows.whole:
            cut = _Cut(found, rows if each == 1 else Rows(rows.begin * each, rows.count * each, rows.whole * each))
        is_sure = rows.count == rows.whole or (found == self.dim and each == self._heads)
        self.log.add(name, shape, shape if cut is None else cut.widened(shape), place, is_sure=is_sure)
        return cut

    def _cut_of(self, name: str, tensor: Tensor) -> _Cut | None:
        """Return where a tensor has the batch; a parameter has none."""
        if isinstance(tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return None
        return self._cut(name, tensor.shape)

    # --- numbers of a given shape ----------------------------------------------------------------------------

    def _of_shape(self, name: str, draw: _Draw, shape: Sequence[int], options: dict[str, Tensor]) -> Tensor:
        cut = self._cut(name, shape)
        if cut is None:
            return draw(size=shape, **options)
        size = cut.widened(shape)
        out, pinned = options.pop("out", None), options.get("pin_memory", False)
        if out is not None:
            whole = cut.stretched(torch.empty(shape, out=out))
            return out.copy_(cut.part(draw(size=size, out=whole, **options)))
        requires_grad = options.pop("requires_grad", False)
        own = cut.own(draw(size=size, **options))
        own = own.pin_memory() if pinned else own
        return own.requires_grad_() if requires_grad else own

    def _rand(
        self,
        name: str,
        original: _Draw,
        *args: object,
        size: Tensor = None,
        **options: object,
    ) -> Tensor:
        if size is None:
            size = args[0] if len(args) == 1 and isinstance(args[0], Sequence) else args
        return self._of_shape(name, original, size, options)

    def _randint(
        self,
        name: str,
        original: _Draw,
        *args: object,
        size: Tensor = None,
        **options: object,
    ) -> Tensor:
        if size is None:
            args, size = args[:-1], args[-1]
        return self._of_shape(name, functools.partial(original, *args), size, options)

    def _normal(
        self,
        name: str,
        original: _Draw,
        mean: Tensor,
        std: Tensor = 1.0,
        size: Tensor = None,
        **options: object,
    ) -> Tensor:
        if size is not None:
            return self._of_shape(name, functools.partial(original, mean, std), size, options)
        shapes = [value.shape for value in (mean, std) if isinstance(value, Tensor)]
        shape = torch.broadcast_shapes(*shapes)
        cut = self._cut(name, shape)
        if cut is None:
            return original(mean, std, **options)
        out = options.pop("out", None)
        own = cut.own(original(cut.placed(mean, len(shape), 0.0), cut.placed(std, len(shape), 1.0), **options))
        return own if out is None else torch.empty(shape, out=out).copy_(own)

    def _like(self, name: str, original: _Draw, input: Tensor, *args: object, **options: object) -> Tensor:
        cut = self._cut_of(name, input)
        if cut is None:
            return original(input, *args, **options)
        requires_grad = options.pop("requires_grad", False)
        own = cut.own(original(cut.stretched(input), *args, **options))
        return own.requires_grad_() if requires_grad else own

    def _in_place(self, name: str, original: _Draw, tensor: Tensor, *args: object, **options: object) -> Tensor:
        cut = self._cut_of(name, tensor)
        if cut is None:
            return original(tensor, *args, **options)
        args = tuple(cut.placed(value, tensor.dim(), 0.5) for value in args)
        options = {word: cut.placed(value, tensor.dim(), 0.5) for word, value in options.items()}
        with torch.no_grad():
            whole = original(cut.stretched(tensor), *args, **options)
        return tensor.copy_(cut.part(whole))

    # --- numbers with tensors as parameters ------------------------------------------------------------------

    def _bernoulli(self, name: str, original: _Draw, input: Tensor, *args: object, **options: object) -> Tensor:
        cut = self._cut_of(name, input)
        if cut is None:
            return original(input, *args, **options)
        out = options.pop("out", None)
        own = cut.own(original(cut.placed(input, input.dim(), 0.5), *args, **options))
        return own if out is None else torch.empty(input.shape, out=out).copy_(own)

    def _multinomial(
        self,
        name: str,
        original: _Draw,
        input: Tensor,
        num_samples: int,
        replacement: bool = False,
        **options: object,
    ) -> Tensor:
        cut = self._cut(name, (*input.shape[:-1], num_samples))
        assert self.rows is not None
        among = "multinomial among", tuple(input.shape), place_of_script()
        if input.shape[-1] != self.rows.count:
            self.log.fix(*among)
        elif self.rows.count != self.rows.whole and (cut is None or input.dim() == 1) and not self.log.is_fixed(*among):
            raise RandomRefusedError(
                f"torch.multinomial chooses among {self.rows.count} entries, as many as this process has rows of the "
                f"batch of {self.rows.whole}: among samples of all processes it cannot choose",
                remedy="choose samples in the data loader; where the entries are no samples, use another batch size",
            )
        if cut is None:
            return original(input, num_samples, replacement, **options)
        out = options.pop("out", None)
        of_rows = cut.dim < input.dim() - 1
        probs = cut.placed(input, input.dim(), 1.0) if of_rows else input
        own = cut.own(original(probs, num_samples if of_rows else cut.rows.whole, replacement, **options))
        return own if out is None else torch.empty(own.shape, out=out, dtype=own.dtype).copy_(own)

    def _refused(self, name: str, original: _Draw, *args: object, **options: object) -> Tensor:
        """Refuse what draws until it accepts: how much that is depends on the values of the other rows."""
        tensors = [value for value in (*args, *options.values()) if isinstance(value, Tensor)]
        if self._cut(name, torch.broadcast_shapes(*(value.shape for value in tensors))) is not None:
            raise RandomRefusedError(
                f"torch.{name} draws as many random numbers as the values of its arguments ask for, so a process "
                "cannot know what the rows of others draw",
                remedy=_REMEDIES[name],
            )
        return original(*args, **options)

    def _rrelu(
        self,
        name: str,
        original: _Draw,
        input: Tensor,
        lower: float = 1.0 / 8,
        upper: float = 1.0 / 3,
        training: bool = False,
        **options: object,
    ) -> Tensor:
        if not training or input.device.type != "cpu":
            return original(input, lower, upper, training, **options)
        return self._refused(name, original, input, lower, upper, training, **options)

    def _randperm(self, name: str, original: _Draw, n: int, **options: object) -> Tensor:
        # The sampler of a data loader shuffles with a generator of its own, and not the rows of a batch.
        if options.get("generator") is None and self._cut(name, (n,), folds=False) is not None:
            assert self.rows is not None
            raise RandomRefusedError(
                f"torch.randperm({n}) permutes as many entries as this process has rows of the batch of "
                f"{self.rows.whole}: among samples of all processes it cannot permute",
                remedy="mix samples in the data set or in collate_fn, where the batch is whole",
            )
        return original(n, **options)

    # --- dropout ---------------------------------------------------------------------------------------------

    def _dropout(self, name: str, original: _Draw, input: Tensor, p: float, train: bool) -> Tensor:
        """Do what torch's dropout does with the noise of the whole batch: each entry, each feature; zero or alpha."""
        if not train or not 0.0 < p < 1.0:
            return original(input, p, train)
        is_of_features, is_alpha = "feature" in name, "alpha" in name
        shape = (*input.shape[:2], *([1] * (input.dim() - 2))) if is_of_features else input.shape
        cut = self._cut(name, shape) if is_of_features else self._cut_of(name, input)
        if cut is None or 0 in cut.widened(input.shape):
            assert self.rows is not None
            if self.rows.count != self.rows.whole and input.numel() and not isinstance(input, torch.nn.Parameter):
                self.log.see(input, place_of_script())
            return original(input, p, train)
        if is_of_features:
            whole = torch.empty(cut.widened(shape), dtype=input.dtype, device=input.device)
        else:
            whole = cut.stretched(input)
            whole = whole if whole.is_contiguous() else torch.empty_like(whole)
        factor, added = self._noise(cut, whole, p, is_alpha, is_of_features)
        result = input.mul_(factor) if name.endswith("_") else input * factor
        return result if added is None else result.add_(added) if name.endswith("_") else result + added

    def _noise(self, cut: _Cut, whole: Tensor, p: float, is_alpha: bool, is_of_features: bool) -> tuple[Tensor, Tensor]:
        """Return what the own rows are multiplied by and, for alpha dropout, what is added."""
        if whole.device.type != "cpu" and not is_alpha and not is_of_features:
            return cut.own(torch.native_dropout(whole.fill_(1), p, True)[0]), None
        noise = cut.own(_bernoulli_(whole, 1 - p))
        if not is_alpha:
            return noise.div_(1 - p), None
        scale = 1.0 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
        added = noise.add(-1).mul_(_ALPHA * scale).add_(_ALPHA * scale * p)
        return noise.mul_(scale), added

    def _recurrent(self, name: str, original: _Draw, *args: Tensor) -> tuple[Tensor, ...]:
        """Compute a recurrent network layer by layer, with the dropout of the whole batch between."""
        call, rows = RecurrentCall.of(original, args), self.rows
        assert rows is not None
        each, others = divmod(call.samples, rows.count) if call.sizes is None else (1, call.samples - rows.count)
        if not call.drops or others or rows.count == rows.whole or not (each == 1 or self.folded):
            plain: tuple[Tensor, ...] = original(*args)
            return plain
        if call.input.device.type != "cpu":
            raise RandomRefusedError(
                f"dropout inside nn.{name.upper()[:4].strip('_')} draws in a kernel of {call.input.device.type}, which "
                "cannot be cut to the rows of a batch",
                remedy="take one module a layer, with nn.Dropout between",
            )
        if call.sizes is None:
            cut = _Cut(1, Rows(rows.begin * each, rows.count * each, rows.whole * each))
            return call.run(lambda flow: flow * cut.part(self._kept(flow, cut.widened(flow.shape), call.dropout)))
        order = self._orders.get(call.sizes)
        own, lengths = lengths_of(call.sizes, order), self._lengths(call.sizes)
        chosen = packed_rows(lengths, own, rows.begin, is_sorted=order is None)
        whole = int(lengths.sum())
        return call.run(lambda flow: flow * self._kept(flow, (whole, *flow.shape[1:]), call.dropout)[chosen])

    def _lengths(self, sizes: Tensor) -> Tensor:
        """Return the length of each sample of the whole batch, for a packed sequence of the own ones."""
        if sizes not in self._whole_lengths:
            own = lengths_of(sizes, self._orders.get(sizes))
            self._whole_lengths[sizes] = own if self.gathered is None else self.gathered(own)
        return self._whole_lengths[sizes]

    def _padded(self, name: str, original: _Draw, data: Tensor, sizes: Tensor, *args: Tensor) -> Tensor:
        """Pad packed sequences to the longest one of the whole batch."""
        assert self.rows is not None
        first, value, longest = args
        if int(sizes[0]) == self.rows.count != self.rows.whole:
            longest = max(longest, int(self._lengths(sizes).max()))
        return original(data, sizes, first, value, longest)

    @staticmethod
    def _kept(like: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
        """Return what dropout multiplies a tensor of the whole batch by."""
        return _bernoulli_(like.new_empty(shape), 1 - p).div_(1 - p)

    def _attend(
        self,
        name: str,
        original: _Draw,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: bool,
    ) -> Tensor:
        """Attend as torch does without a fused kernel, with the dropout of the whole batch."""
        shape = (*query.shape[:-1], key.shape[-2])
        if dropout_p == 0.0 or self._cut(name, shape) is None:
            return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
        self.log.drop_last()
        device = query.device.type
        if torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
            query, key, value = query.to(kind), key.to(kind), value.to(kind)
        with torch.autocast(device, enabled=False):
            return self._attended(query, key, value, attn_mask, dropout_p, is_causal, **options)

    def _attended(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        dropout_p: float,
        is_causal: bool,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Compute softmax(q kᵀ scale + mask) → dropout → v, in float32 where the tensors are of half precision."""
        kind = query.dtype
        if kind in (torch.float16, torch.bfloat16):
            query, key, value = query.float(), key.float(), value.float()
            mask = mask.float() if mask is not None and mask.dtype == kind else mask
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        root = math.sqrt(abs(scale))
        if is_causal:
            mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -math.inf)
        weights = (query * math.copysign(root, scale)) @ (key.transpose(-2, -1) * root)
        weights = torch._safe_softmax(weights if mask is None else weights + mask, -1)
        weights = self._dropout("dropout", torch._C._VariableFunctions.dropout, weights, dropout_p, True)
        return (weights @ value).to(kind)

    def _many_heads(self, name: str, original: _Draw, query: Tensor, *args: int, **options: int) -> Tensor:
        """Cut weights of attention, which have the heads of a sample one after another in the first dimension."""
        assert self.rows is not None
        heads = args[3] if len(args) > 3 else options["num_heads"]
        needs_weights = args[14] if len(args) > 14 else options.get("need_weights", True)
        is_folded = needs_weights and query.dim() == 3 and query.shape[1] == self.rows.count
        self._heads = heads if is_folded else 1
        try:
            return original(query, *args, **options)
        finally:
            self._heads = 1


_IN_DATA = "draw it in the data set or in collate_fn, before the batch is cut"
_REMEDIES = {
    "poisson": _IN_DATA,
    "binomial": f"{_IN_DATA}; or add up torch.bernoulli over a dimension of trials",
    "_standard_gamma": f"torch.distributions' Gamma, Beta, Chi2 and StudentT use it: {_IN_DATA}",
    "_sample_dirichlet": f"torch.distributions' Dirichlet uses it: {_IN_DATA}",
    "rrelu": "use leaky_relu",
    "rrelu_": "use leaky_relu",
}
_DROPOUTS = tuple(
    name + end for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout") for end in ("", "_")
)
# The functional forms of dropout look theirs up in torch._VF.
_DRAWING: tuple[tuple[object, tuple[str, ...], _Draw], ...] = (
    (torch, ("rand", "randn"), WholeDraws._rand),
    (torch, ("randint",), WholeDraws._randint),
    (torch, ("randperm",), WholeDraws._randperm),
    (torch, ("normal",), WholeDraws._normal),
    (torch, ("rand_like", "randn_like", "randint_like"), WholeDraws._like),
    (
        torch.Tensor,
        ("normal_", "uniform_", "bernoulli_", "exponential_", "random_", "log_normal_", "geometric_", "cauchy_"),
        WholeDraws._in_place,
    ),
    (torch, ("bernoulli",), WholeDraws._bernoulli),
    (Tensor, ("bernoulli",), WholeDraws._bernoulli),
    (torch, ("multinomial",), WholeDraws._multinomial),
    (Tensor, ("multinomial",), WholeDraws._multinomial),
    (torch, ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet"), WholeDraws._refused),
    (torch, ("rrelu", "rrelu_"), WholeDraws._rrelu),
    (torch._VF, _DROPOUTS, WholeDraws._dropout),
    (torch, _DROPOUTS, WholeDraws._dropout),
    (torch._VF, KERNELS, WholeDraws._recurrent),
    (torch, KERNELS, WholeDraws._recurrent),
    (torch._VF, ("_pad_packed_sequence",), WholeDraws._padded),
    (torch.nn.functional, ("scaled_dot_product_attention",), WholeDraws._attend),
    (torch.nn.functional, ("multi_head_attention_forward",), WholeDraws._many_heads),
)

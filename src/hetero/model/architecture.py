"""Architecture of a language model, as a value: its layers, and what they weigh.

In: layers, widths, heads, experts. Out: parameters by place and values of the KV cache. It must not read files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from hetero.floor.errors import BadValueError

__all__ = ["ModelSpec", "Parameters"]


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many parameters lie where.

    Attributes
    ----------
    embedding : input and position tables
    head : the output matrix, 0 where it is the embedding's
    linear : matrices of the layers, every expert counted
    other : norms and biases
    largest_matrix : of the linear layers and the head
    active : that one token passes through
    """

    embedding: int
    head: int
    linear: int
    other: int
    largest_matrix: int
    active: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.head + self.linear + self.other


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of an architecture from which memory follows.

    Attributes
    ----------
    name : as users know it
    kind : 'decoder', 'encoder' or 'encoder-decoder'
    layers, hidden, heads, kv_heads, head_dim, intermediate, vocab : widths and counts
    gated : True for a gate beside the up-projection (SwiGLU, GeGLU)
    norms : norms of the hidden width a layer
    norm_kind : 'rms' or 'layer'
    qk_norm : '' or 'head' (over one head's width) or 'full' (over all heads)
    attention_bias : biases on 'qkv', on 'all' four, or '' none; `mlp_bias` likewise for the other matrices
    tied : True where the head is the embedding
    positions : rows of a learned position table, 0 for rotary ones
    experts, experts_per_token, expert_intermediate, shared_experts : of a mixture, else 0
    dense_layers : layers without experts in a mixture
    expert_bias : True where experts and router have biases
    window : tokens that a sliding-window layer sees, 0 without
    windowed_layers : layers with the window
    q_rank, kv_rank, rope_dim, nope_dim, value_dim : of multi-head latent attention, else 0
    encoder_layers : layers of the encoder in an encoder-decoder
    encoder_positions, mel_bins : rows of the encoder's own positions, bins of its audio input
    context : the longest context that it was made for, 0 where unknown
    published : published number of parameters, 0 where no source was opened
    source, published_source : ids of sources
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    kind: Literal["decoder", "encoder", "encoder-decoder"] = "decoder"
    gated: bool = True
    norms: int = 2
    norm_kind: Literal["rms", "layer"] = "rms"
    qk_norm: Literal["", "head", "full"] = ""
    attention_bias: Literal["", "qkv", "all"] = ""
    mlp_bias: bool = False
    tied: bool = False
    positions: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    expert_bias: bool = False
    window: int = 0
    windowed_layers: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    value_dim: int = 0
    encoder_layers: int = 0
    encoder_positions: int = 0
    mel_bins: int = 0
    context: int = 0
    published: int = 0
    source: str = ""
    published_source: str = ""

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "kv_heads", "vocab"):
            if getattr(self, field) < 1:
                raise BadValueError(f"{self.name}: {field} is {getattr(self, field)}", remedy="it must be above 0")

    @classmethod
    def from_config(cls, document: Mapping[str, object], name: str = "", where: str = "config.json") -> ModelSpec:
        """Read the `config.json` of a Hugging Face model.

        Parameters
        ----------
        document : the parsed file
        name : what to call the model; default: what the file says
        where : how messages name the file

        Raises
        ------
        BadValueError
            A fact is absent or has a wrong type; the message names the key and the remedy.

        Examples
        --------
        >>> config = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "vocab_size": 10}
        >>> ModelSpec.from_config(config)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        hetero.floor.errors.BadValueError: config.json has no 'num_attention_heads' (or n_head, ...
        """
        from hetero.model.hf_config import read

        return read(document, name=name, where=where)

    @property
    def latent(self) -> bool:
        """Return whether attention is multi-head latent attention."""
        return self.kv_rank > 0

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * (self.nope_dim + self.rope_dim if self.latent else self.head_dim)

    @property
    def value_width(self) -> int:
        """Width of what attention hands to its output projection."""
        return self.heads * (self.value_dim if self.latent else self.head_dim)

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def mlp_width_per_token(self) -> int:
        """Inner width of the MLP that one token passes, summed over its experts, in the widest kind of layer."""
        mixture = (self.experts_per_token + self.shared_experts) * self.expert_intermediate
        return max(mixture, self.intermediate) if self.expert_layers < self.layers else mixture

    def attention_linear(self) -> int:
        """Count the weights of one layer's attention matrices.

        Notes
        -----
        Grouped-query: hidden·(q + 2·kv) + q·hidden. Latent (DeepSeek-V2, 2024, section 2.1): down- and
        up-projections of queries and of keys with values, and the output.
        """
        if not self.latent:
            kv = self.kv_heads * self.head_dim
            return self.hidden * (self.query_width + 2 * kv) + self.value_width * self.hidden
        down = self.hidden * (self.kv_rank + self.rope_dim)
        up = self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        query = self.hidden * self.query_width
        if self.q_rank:
            query = self.q_rank * (self.hidden + self.query_width)
        return query + down + up + self.value_width * self.hidden

    def _mlp_linear(self, width: int) -> int:
        return (3 if self.gated else 2) * self.hidden * width

    def parameters(self) -> Parameters:
        """Count the parameters.

        Examples
        --------
        >>> llama = ModelSpec("l", 32, 4096, 32, 32, 128, 11008, 32000)
        >>> llama.parameters().total
        6738415616
        """
        return _counted(self)

    def _count(self) -> Parameters:
        attention = self.attention_linear()
        expert = self._mlp_linear(self.expert_intermediate)
        experts = (self.experts + self.shared_experts) * expert + self.hidden * self.experts
        mixed, dense = self.expert_layers, self.layers - self.expert_layers
        linear = self.layers * attention + mixed * experts + dense * self._mlp_linear(self.intermediate)
        idle = mixed * (self.experts - self.experts_per_token) * expert
        encoder = self._encoder_linear()
        head = 0 if self.tied else self.vocab * self.hidden
        embedding = (self.vocab + self.positions + self.encoder_positions) * self.hidden
        other = self._other()
        widest = max(self.intermediate if dense else 0, self.expert_intermediate, self.query_width)
        return Parameters(
            embedding=embedding,
            head=head,
            linear=linear + encoder,
            other=other,
            largest_matrix=max(self.hidden * widest, head),
            active=linear - idle + encoder + head + other,
        )

    def _encoder_linear(self) -> int:
        if not self.encoder_layers:
            pooler = self.hidden * (self.hidden + 1)
            return pooler if self.kind == "encoder" and self.positions else 0
        block = self.attention_linear() + self._mlp_linear(self.intermediate)
        convolutions = 3 * self.hidden * (self.mel_bins + self.hidden) if self.mel_bins else 0
        return self.encoder_layers * block + self.layers * self.attention_linear() + convolutions

    def _other(self) -> int:
        per_norm = self.hidden * (2 if self.norm_kind == "layer" else 1)
        kv = self.kv_heads * self.head_dim
        per_layer = self.norms * per_norm
        per_layer += {"": 0, "head": 2 * self.head_dim, "full": self.query_width + kv}[self.qk_norm]
        biases = {"": 0, "qkv": self.query_width + 2 * kv, "all": self.query_width + 2 * kv + self.hidden}
        per_layer += biases[self.attention_bias]
        per_layer += self.q_rank + self.kv_rank
        if self.mlp_bias:
            per_layer += self.intermediate * (2 if self.gated else 1) + self.hidden
        biased = self.experts * (2 * self.expert_intermediate + self.hidden + 1) if self.expert_bias else 0
        encoder = self.encoder_layers * per_layer + (self.layers * (per_layer // 2) if self.encoder_layers else 0)
        return self.layers * per_layer + self.expert_layers * biased + encoder + per_norm

    def kv_values(self, tokens: int) -> int:
        """Count the numbers that the KV cache of one sequence holds.

        Parameters
        ----------
        tokens : length of the sequence

        Notes
        -----
        Grouped-query: 2·kv_heads·head_dim a token and layer. Latent: kv_rank + rope_dim a token and layer, keys and
        values together. A layer with a sliding window keeps no more than the window.

        Examples
        --------
        >>> ModelSpec("l", 32, 4096, 32, 8, 128, 14336, 128256).kv_values(1)
        65536
        """
        if self.kind == "encoder":
            return 0
        width = self.kv_rank + self.rope_dim if self.latent else 2 * self.kv_heads * self.head_dim
        windowed = self.windowed_layers if self.window else 0
        seen = (self.layers - windowed) * tokens + windowed * min(tokens, self.window or tokens)
        return width * (seen + (self.layers * self.encoder_positions if self.encoder_layers else 0))


@lru_cache(maxsize=256)
def _counted(model: ModelSpec) -> Parameters:
    return model._count()

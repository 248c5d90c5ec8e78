"""One turn of benchmarks/gpu.py: a process that has the GPU to itself.

    python -m benchmarks.gpu_turn CASE PEER BATCH [--tiny] [--embedder=DIR]

PEER is an implementation of attention, torch or vllm; BATCH the largest to try. The answer is JSON,
on the last line; it is `missing` where the peer cannot do the case.
"""

import argparse
import importlib
import importlib.metadata
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace

TRAIN = {  # a page of configs/, and what is changed of it
    "gpt2_124m": ("gpt2_small", {"objective": {"documents": "joined"}}),
    "gpt2_xl": (
        "gpt2_xl",
        {"objective": {"documents": "joined"}, "mesh": {"fsdp": 1}, "model": {"remat": "none"}},
    ),
    "bert_base": ("bert_base", {}),
    "t5_base": ("t5_base", {}),
    "llama_1b": (
        "llama_1b",
        {"objective": {"documents": "joined"}, "model": {"remat": "none"}},
    ),
}
ATTENTIONS = ("auto", "cudnn", "blockwise", "dense")
# batch, length, heads, heads of keys, their width, and the mask: what the cases have, and longer
PROVEN = {
    "attention_gpt2": (4, 1024, 12, 12, 64, "causal"),
    "attention_llama": (2, 2048, 32, 4, 64, "causal"),
    "attention_long": (1, 8192, 16, 16, 128, "causal"),
    "attention_bert": (8, 512, 12, 12, 64, "padding"),
    "attention_window": (2, 4096, 16, 8, 128, "window"),
}
EMBED = ("embed_minilm",)
DECODE = {f"decode_b{batch}": batch for batch in (1, 8, 64)}  # of GPT-2 124M
# layers, width, heads: what torch has a peer for
GPTS = {
    "gpt2_124m": (12, 768, 12),
    "gpt2_xl": (48, 1600, 25),
}
BATCHES = (256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1)
NEW = 256  # tokens of a continuation
FULL = "RESOURCE_EXHAUSTED", "out of memory"  # jax's and torch's words for it


def config(name: str, attention: str, batch: int, tiny: bool):
    """Returns the config of a case without dropout, which cuDNN's attention lacks; a microbatch is
    the whole batch."""
    from flaxformer_lite.config import ExperimentConfig, from_config_dict

    page, changes = TRAIN[name]
    found = importlib.import_module(f"configs.{page}").get_config()
    found.model.update(dropout=0.0, attention=attention)
    found.train.update(accumulate=1, batch_size=batch)
    for part, fields in changes.items():
        found[part].update(fields)
    if tiny:
        found.model.update(num_heads=2, d_model=32, mlp_dim=64, vocab_size=512)
        if "num_kv_heads" in found.model:
            found.model.num_kv_heads = 1
        found.model.update(
            {side: min(found.model[side], 2) for side in ("encoder_layers", "decoder_layers")}
        )
        found.data.length = 64
    return from_config_dict(ExperimentConfig, found)


def train(name: str, attention: str, batch: int, tiny: bool):
    """Builds a step of this package; returns it with its tokens and FLOPs."""
    import jax

    from flaxformer_lite import sharding
    from flaxformer_lite.data import dummy
    from flaxformer_lite.runs.start.initial_state import initial_state
    from flaxformer_lite.training import program

    cfg = config(name, attention, batch, tiny)
    rows = dummy.batch(cfg)
    for ids in ("segment_ids", "decoder_segment_ids"):
        rows["inputs"].pop(ids, None)
    ready = program.build(cfg, sharding.build_mesh(cfg.mesh), jax.tree.map(lambda x: x[0], rows))
    placed = sharding.place_batch(rows, ready.mesh)
    state = initial_state(ready)

    def step() -> float:
        nonlocal state
        state, metrics = ready.train_step(state, placed)
        return float(metrics["loss"])

    return step, ready.tokens_per_step, ready.flops_per_step


def write(attention: str, batch: int, tiny: bool):
    """Builds greedy generation by this package, with weights in bfloat16."""
    import jax
    import jax.numpy as jnp

    from flaxformer_lite import build_model, generate

    model = build_model(config("gpt2_124m", attention, batch, tiny).model)
    ids = jnp.ones((batch, 16), jnp.int32)
    params = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16), jax.jit(model.init)(jax.random.key(0), ids)["params"]
    )
    return lambda: float(generate(model, params, ids, max_new_tokens=NEW).sum()), batch * NEW, 0


def torch_train(name: str, batch: int, tiny: bool):
    """Builds a step of a plain GPT under autocast and torch.compile, with torch's fused attention
    and optimizer."""
    import torch

    from benchmarks import nano_torch

    (layers, width, heads), length = ((2, 32, 2), 64) if tiny else (GPTS[name], 1024)
    case = SimpleNamespace(
        layers=layers, d_model=width, heads=heads, mlp_dim=4 * width, vocab=50304, length=length
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nano_torch.Gpt(case).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    ids = torch.randint(0, case.vocab, (batch, length + 1), device=device)

    @torch.compile
    def loss_of(ids):
        with torch.autocast(device, torch.bfloat16):
            logits = model(ids[:, :-1])
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    def step() -> float:
        loss = loss_of(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, batch * length, 0


def torch_write(batch: int, tiny: bool):
    """Builds greedy generation by transformers' GPT-2, in bfloat16."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2} if tiny else {}
    model = (
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
        .to(device, torch.bfloat16)
        .eval()
    )
    ids = torch.ones((batch, 16), dtype=torch.long, device=device)
    options = dict(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
    return (
        lambda: float(model.generate(ids, attention_mask=torch.ones_like(ids), **options).sum()),
        batch * NEW,
        0,
    )


def vllm_write(batch: int, tiny: bool):
    """Builds greedy generation by vLLM, with random weights of GPT-2 in bfloat16."""
    import transformers
    import vllm

    folder = tempfile.mkdtemp()
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2} if tiny else {}
    config = transformers.GPT2Config(architectures=["GPT2LMHeadModel"], **sizes)
    config.save_pretrained(folder)
    engine = vllm.LLM(
        folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", max_model_len=1024
    )
    lengths = {"max_tokens": NEW, "min_tokens": NEW, "ignore_eos": True, "detokenize": False}
    settings = vllm.SamplingParams(temperature=0.0, **lengths)
    prompts = [{"prompt_token_ids": [1] * 16}] * batch

    def step() -> float:
        answers = engine.generate(prompts, settings, use_tqdm=False)
        return float(sum(sum(answer.outputs[0].token_ids) for answer in answers))

    return step, batch * NEW, 0


def embed(peer: str, embedder: str):
    """Builds the embedding of texts, as benchmarks/peers.py does it on CPUs."""
    from benchmarks import peer_jobs
    from benchmarks.peer_jobs import ours, sentence_transformers

    if not embedder:
        raise ImportError("name the folder of all-MiniLM-L6-v2: make gpu EMBEDDER=DIR")
    jobs = sentence_transformers if peer == "torch" else ours
    work = jobs.embed(peer_jobs.Case(32, "float32", 1, "", embedder, ""))
    tokens = sum(len(text.split()) for text in peer_jobs.draw_texts(peer_jobs.TEXTS))  # words

    def step() -> float:
        work()
        return 0.0

    return step, tokens, 0


def prove(name: str, kernel: str, tiny: bool) -> dict:
    """Compares a kernel in bfloat16 with dense attention in float32, forward and backward.

    Returns:
      The largest difference of the output, and of the gradients of q, k and v, as a share of the
      largest number; `dense` is that of dense attention in bfloat16, and `agrees` whether the
      kernel is at most twice as far away.
    """
    import jax
    import jax.numpy as jnp

    from flaxformer_lite.nn.attentions.dispatch import attention
    from flaxformer_lite.nn.functions import masks

    *sizes, kind = PROVEN[name]
    if tiny:
        sizes = [2, 64, 4, 2, 16]
    (B, T, N, K, H) = sizes
    mask = {
        "causal": masks.causal(),
        "window": masks.window(T // 8) & masks.causal(),
        "padding": masks.padding(jnp.arange(T)[None] < T - T // 8 * (jnp.arange(B)[:, None] % 3)),
    }[kind]
    keys = jax.random.split(jax.random.key(0), 4)
    q_shape = (B, T, N, H)
    k_shape = (B, T, K, H)
    shapes = (q_shape, k_shape, k_shape, q_shape)
    *inputs, direction = [
        jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)
    ]

    def compute(implementation: str, dtype) -> list:
        def attend(q, k, v):
            return attention(q, k, v, mask=mask, implementation=implementation)

        @jax.jit
        def both(*arrays):
            out, pull = jax.vjp(attend, *arrays)
            return out, *pull(direction.astype(out.dtype))

        return both(*[x.astype(dtype) for x in inputs])

    due = [x.astype(jnp.float32) for x in compute("dense", jnp.float32)]

    def differences(found: list) -> list[float]:
        shares = []
        for x, right in zip(found, due, strict=True):
            far = jnp.abs(x.astype(jnp.float32) - right).max()
            shares.append(float(far / jnp.abs(right).max()))
        return [shares[0], max(shares[1:])]

    own = differences(compute(kernel, jnp.bfloat16))
    dense = differences(compute("dense", jnp.bfloat16))
    agrees = all(a <= 2 * b for a, b in zip(own, dense, strict=True))
    return {"errors": own, "dense": dense, "agrees": agrees, "shape": [B, T, N, K, H, kind]}


def build(name: str, peer: str, batch: int, tiny: bool, embedder: str):
    """Builds the work of a case; returns it with its tokens, and its FLOPs if known."""
    if name in EMBED:
        return embed(peer, embedder)
    if name in DECODE:
        writers = {"torch": torch_write, "vllm": vllm_write}
        if peer in writers:
            return writers[peer](batch, tiny)
        return write(peer, batch, tiny)
    if peer == "torch":
        return torch_train(name, batch, tiny)
    return train(name, peer, batch, tiny)


def turn(name: str, peer: str, batch: int, tiny: bool, embedder: str = "") -> dict:
    """Measures in one process, at the largest batch up to `batch` that fits."""
    if name in PROVEN:
        return prove(name, peer, tiny) | machine(peer)
    said = []
    logger = logging.getLogger("flaxformer_lite")
    logger.setLevel(logging.INFO)
    logger.addFilter(lambda record: bool(said.append(record.getMessage())))
    sizes = [batch]
    if name in TRAIN:
        sizes = [size for size in BATCHES if size <= batch]
    step: Callable[[], float] | None
    for size in sizes:
        try:
            step, tokens, flops = build(name, peer, size, tiny, embedder)
            values = []
            seconds = []
            for _ in range(3 if tiny else 25):
                began = time.perf_counter()
                values.append(step())
                seconds.append(time.perf_counter() - began)
        except Exception as error:
            if not any(word in str(error) for word in FULL):
                raise
            step = None  # gives its arrays back
            continue
        return {
            "batch": size,
            "seconds": statistics.median(seconds[len(seconds) // 5 + 1 :]),
            "first": seconds[0],
            "tokens": tokens,
            "flops": flops,
            "values": [values[0], values[-1]],
            "said": said,
            **machine(peer),
        }
    return {"batch": 0, "said": said}


def machine(peer: str) -> dict:
    """Returns the device, its peak of memory in use, and the version."""
    if peer in ("torch", "vllm"):
        import torch

        cuda = torch.cuda.is_available()
        return {
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "version": f"{peer} {importlib.metadata.version(peer)}",
            "memory": torch.cuda.max_memory_allocated() if cuda else 0,
        }
    import jax

    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use", 0)
    return {"device": device.device_kind, "version": f"jax {jax.__version__}", "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    parser.add_argument("peer")
    parser.add_argument("batch", type=int)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--embedder", default="")
    args = parser.parse_args()
    try:
        found = turn(args.case, args.peer, args.batch, args.tiny, args.embedder)
    except (ImportError, ValueError) as error:  # a ConfigError, too: what a kernel cannot take
        found = {"missing": str(error).splitlines()[0]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

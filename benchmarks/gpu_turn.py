"""One turn of benchmarks/gpu.py: a process that has the GPU to itself.

    python -m benchmarks.gpu_turn CASE PEER BATCH [--tiny]

PEER is an implementation of attention, or torch; BATCH the largest to try. The answer is JSON, on
the last line.
"""

import importlib
import json
import logging
import statistics
import sys
import time
from types import SimpleNamespace

TRAIN = {  # a page of configs/, and what is changed of it
    "gpt2_124m": ("gpt2_small", {"objective": {"documents": "joined"}}),
    "gpt2_xl": (
        "gpt2_xl",
        {"objective": {"documents": "joined"}, "mesh": {"fsdp": 1}, "model": {"remat": "none"}},
    ),
    "bert_base": ("bert_base", {}),
    "t5_base": ("t5_base", {}),
}
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


def build(name: str, peer: str, batch: int, tiny: bool):
    """Builds the work of a case; returns it with its tokens, and its FLOPs if known."""
    if name in DECODE:
        return torch_write(batch, tiny) if peer == "torch" else write(peer, batch, tiny)
    return torch_train(name, batch, tiny) if peer == "torch" else train(name, peer, batch, tiny)


def turn(name: str, peer: str, batch: int, tiny: bool) -> dict:
    """Measures in one process, at the largest batch up to `batch` that fits."""
    said = []
    logger = logging.getLogger("flaxformer_lite")
    logger.setLevel(logging.INFO)
    logger.addFilter(lambda record: bool(said.append(record.getMessage())))
    for size in [batch] if name in DECODE else [b for b in BATCHES if b <= batch]:
        try:
            step, tokens, flops = build(name, peer, size, tiny)
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
    if peer == "torch":
        import torch

        cuda = torch.cuda.is_available()
        return {
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "version": f"torch {torch.__version__}",
            "memory": torch.cuda.max_memory_allocated() if cuda else 0,
        }
    import jax

    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use", 0)
    return {"device": device.device_kind, "version": f"jax {jax.__version__}", "memory": memory}


if __name__ == "__main__":
    print(json.dumps(turn(sys.argv[1], sys.argv[2], int(sys.argv[3]), "--tiny" in sys.argv)))

"""Random configs of every family, computed by transformers and by this package.

    python tools/hunt.py theirs /tmp/hunt --seed 3     # torch: draws configs, weights and inputs
    python tools/hunt.py ours /tmp/hunt                # JAX: loads and compares

Each fixture of make_fixtures.py is drawn anew with some fields of its config.json at values that
are not transformers' defaults: other activations, booleans, nulls, sizes. `ours` prints the largest
error of each, with the drawn fields where it is too large, or why it was refused; the exit status
is 1 where one exceeds the tolerance.
"""

import argparse
import dataclasses
import functools
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

# Field -> values to draw; those that a family's config class does not have are left out.
TWISTS: dict[str, tuple[Any, ...]] = {
    "activation_function": ("relu", "gelu", "gelu_new", "silu", "gelu_fast", "tanh"),
    "apply_residual_connection_post_layernorm": (True,),
    "attention_bias": (True, False),
    "attn_logit_softcapping": (None, 5.0),
    "do_layer_norm_before": (False,),
    "feed_forward_proj": ("relu", "gated-gelu", "gated-silu", "gelu"),
    "final_logit_softcapping": (None, 3.0),
    "head_dim": (8, 12),
    "hidden_act": ("relu", "gelu", "gelu_new", "silu", "gelu_pytorch_tanh"),
    "inner_group_num": (2,),
    "layer_norm_eps": (1e-3,),
    "layer_norm_epsilon": (1e-2,),
    "mlp_bias": (True,),
    "n_inner": (28,),
    "pad_token_id": (0, 3),
    "query_pre_attn_scalar": (7,),
    "relative_attention_max_distance": (9,),
    "relative_attention_num_buckets": (4, 8),
    "rms_norm_eps": (1e-2,),
    "rotary_value": (True,),
    "scale_attn_by_inverse_layer_idx": (True,),
    "scale_attn_weights": (False,),
    "scale_embedding": (True, False),
    "sliding_window": (2, None),
    "tie_word_embeddings": (True, False),
    "use_parallel_residual": (True, False),
    "window_size": (2,),
}
SHARE = 0.35  # of the fields that are twisted
TOLERANCE = 1e-5


def theirs(out: Path, seed: int, only: str) -> None:
    """Draws a model for each fixture, and stores what transformers computes."""
    import make_fixtures
    import torch
    import transformers
    from fixture_specs import specs

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = {}
    for spec in specs():
        if not spec.name.startswith(only):
            continue
        rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
        known = transformers.AutoConfig.for_model(spec.model_type).to_dict()
        drawn = {
            field: values[int(rng.integers(len(values)))]
            for field, values in TWISTS.items()
            if field in known and rng.random() < SHARE
        }
        twisted = dataclasses.replace(spec, config=spec.config | drawn, published={})
        folder = out / spec.name
        try:
            make_fixtures.write_checkpoint(twisted, folder, rng, jitter=True)
            model = make_fixtures.read_checkpoint(twisted, folder)
            inputs = make_fixtures.case_inputs(twisted, model, "default", rng)
            outputs = make_fixtures.forward(model, inputs)
        except Exception as error:  # a combination that transformers refuses
            print(f"{spec.name:42s} transformers: {brief(error)}", flush=True)
            continue
        arrays = {f"in/{key}": value for key, value in inputs.items()}
        arrays |= {f"out/{key}": value for key, value in outputs.items()}
        np.savez(folder / "expected.npz", **arrays)
        rows[spec.name] = {"model_type": spec.model_type, "drawn": drawn}
    (out / "hunt.json").write_text(json.dumps(rows))


def ours(out: Path, only: str) -> None:
    """Compares each with what this package computes from the same files."""
    import jax
    import parity

    from flaxformer_lite import load_pretrained
    from flaxformer_lite.config import ConfigError

    worst = 0.0
    for name, row in json.loads((out / "hunt.json").read_text()).items():
        if not name.startswith(only):
            continue
        with np.load(out / name / "expected.npz") as file:
            stored = dict(file)
        inputs = parity.part(stored, "in/")
        due = parity.part(stored, "out/")
        try:
            model, params = load_pretrained(out / name)
            output = jax.jit(functools.partial(model.apply, **inputs))({"params": params})
        except (ConfigError, ValueError) as error:
            print(f"{name:42s} refused: {brief(error)}   {row['drawn']}", flush=True)
            continue
        error = parity.error({key: getattr(output, key) for key in due}, due, inputs)
        worst = max(worst, error) if np.isfinite(error) else np.inf
        marked = "" if error <= TOLERANCE else f"   {row['drawn']}"
        print(f"{name:42s} {error:9.1e}{marked}", flush=True)
    print(f"largest error {worst:.1e}")
    sys.exit(not worst <= TOLERANCE)


def brief(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("side", choices=("theirs", "ours"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="fixtures whose name begins so")
    options = parser.parse_args()
    if options.side == "ours":
        ours(options.folder, options.only)
    else:
        theirs(options.folder, options.seed, options.only)


if __name__ == "__main__":
    main()

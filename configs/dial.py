"""One dial: the depth gives width, heads, vocabulary, tokens, batch and learning rate of a Llama.

    flaxformer_lite train --config=dial:depth=2 --workdir=runs/dial2     # on a laptop
    flaxformer_lite plan --config=dial:depth=12 --topology=v5e:4x4       # its bill

After nanochat (Karpathy 2025), with published laws for what depends on compute; docs/scaling.md has
a table of the results. With d the depth:

* width 64 d, as in nanochat; heads of 128 from depth 8 on, which fill a TPU's lanes, else of 64;
* a gated feed-forward of 8/3 of the width, as in Llama: 12 width^2 weights a layer;
* a vocabulary of 1024 d, at most 32,768: the table then has 4 / (3 d) of the layers' weights;
* rows of as many tokens as the model is wide, at most 2048;
* 20 tokens a parameter: Hoffmann et al. (2022), "Training Compute-Optimal Large Language Models";
* with C = 6 parameters tokens FLOPs, a batch of 0.292 C^0.3271 tokens, rounded to a power of two of
  rows, and a peak learning rate of 0.3118 C^-0.125: DeepSeek-AI (2024), "DeepSeek LLM",
  section 3.1, fitted from 1e17 to 2e19 FLOPs, depths 8 to 20; beyond them it is extrapolated;
* a warm-up of 1/50 of the steps, and the linear fall to a tenth over the last fifth.

From depth 8 on activations are bfloat16, layers are scanned and recomputed but for attention, and
all devices split weights and batch (mesh.fsdp).
"""

import math
import re

from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import llama
from flaxformer_lite.objectives.text.causal_lm import CausalLm

DEEPEST = 128
LARGE = 8  # the depth from which on a run is meant for accelerators


def depth_of(argument: str) -> int:
    """Reads the page's argument, `depth=12`."""
    match = re.fullmatch(r"(?:depth=)?(\d{1,4})", argument)
    depth = int(match[1]) if match else 0
    if not 2 <= depth <= DEEPEST:
        raise ConfigError(
            f"{argument!r} is no depth: must be dial:depth=D with a depth from 2 to {DEEPEST}, such"
            " as dial:depth=4."
        )
    return depth


def multiple(size: float, of: int) -> int:
    """Rounds a size up."""
    return math.ceil(size / of) * of


def get_config(argument: str = "depth=4"):
    depth = depth_of(argument)
    is_large = depth >= LARGE
    width = 64 * depth
    head_dim = 128 if is_large and width % 128 == 0 else 64
    mlp_dim = multiple(8 / 3 * width, 64)
    vocab_size = min(1024 * depth, 32768)
    length = min(multiple(width, 128), 2048)
    parameters = depth * (4 * width + 3 * mlp_dim) * width + vocab_size * width
    tokens = 20 * parameters
    compute = 6 * parameters * tokens
    rows = 2 ** round(math.log2(0.292 * compute**0.3271 / length))
    steps = round(tokens / (rows * length))
    return to_config_dict(
        ExperimentConfig(
            model=llama.config(
                "tiny",
                vocab_size=vocab_size,
                d_model=width,
                num_heads=width // head_dim,
                num_kv_heads=0,
                head_dim=head_dim,
                mlp_dim=mlp_dim,
                decoder_layers=depth,
                max_length=length,
                tie_embeddings=True,
                dtype="bfloat16" if is_large else "float32",
                scan=is_large,
                remat="attention" if is_large else "none",
            ),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code",
                tokenizer=TokenizerConfig(vocab_size=vocab_size),
                length=length,
            ),
            optimizer=OptimizerConfig(
                learning_rate=float(f"{0.3118 * compute**-0.125:.2g}"),
                schedule="wsd",
                warmup_steps=steps // 50,
                decay_steps=steps // 5,
            ),
            train=TrainConfig(
                steps=steps,
                batch_size=rows,
                log_every=20,
                eval_every=max(steps // 10, 1),
                checkpoint_every=max(steps // 10, 1),
                sample_tokens=100,
            ),
            mesh=MeshConfig(data=1, fsdp=-1) if is_large else MeshConfig(),
        )
    )

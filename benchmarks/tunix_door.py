"""Tunix's sampler, PeftTrainer and GRPO on models of this package, in a process that has both.

Greedy ids of Tunix's sampler are compared with those of `generate`, family by family; PeftTrainer
trains all weights, then an adapter's factors alone; GRPO makes a model write one letter more often.

    pip install google-tunix
    python -m benchmarks.tunix_door
    python -m benchmarks.tunix_door --families gpt2 gemma2 --skip_training
"""

import argparse
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.generate import utils
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout
from tunix.sft import peft_trainer

from examples.tunix_decoder import TunixDecoder
from flaxformer_lite import build_model, cross_entropy, generate
from flaxformer_lite.nn.adapters.lora import LoraConfig
from flaxformer_lite.nn.adapters.merge import with_begun_factors

FAMILIES = (
    "gpt2",
    "llama",
    "mistral",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "bloom",
    "gpt_neox",
    "mixtral",
    "gpt_oss",
    "deepseek_v3",
    "qwen3_next",
)
PROMPTS = ("abc", "a longer prompt", "x")
NEW = 24
VOCAB = 128


class Letters:
    """ASCII, with the methods that Tunix asks a tokenizer for."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(i) for i in ids)

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return 2

    def pad_id(self) -> int:
        return 0


def model_of(family: str, **fields):
    """Builds a tiny model with weights wide enough for one token to stand out."""
    fields = {"vocab_size": VOCAB, "decoder_layers": 2, "max_length": 128, **fields}
    model = build_model(family, "tiny", **fields)
    params = model.init(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
    return model, jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, params)


def greedy(family: str) -> tuple[int, int]:
    """Returns how many of the prompts have the same ids, and the length of the shortest text."""
    model, params = model_of(family)
    module = TunixDecoder(model, params)
    sampler = Sampler(module, Letters(), module.cache_config(64, CacheConfig))
    outs = [sampler(list(PROMPTS), max_generation_steps=NEW, max_prompt_length=32, seed=0)]
    outs.append(sampler(PROMPTS[1], max_generation_steps=NEW, max_prompt_length=32, seed=0))
    rows = list(zip([*PROMPTS, PROMPTS[1]], [*outs[0].tokens, *outs[1].tokens], strict=True))
    same = 0
    shortest = NEW
    for prompt, tokens in rows:
        ids = [1, *Letters().encode(prompt)]
        want = generate(model, params, [ids], max_new_tokens=NEW, eos_token_id=2)[0, len(ids) :]
        got = np.asarray(tokens)
        same += got.tolist() == want[: len(got)].tolist()
        shortest = min(shortest, len(got))
    return same == len(rows), shortest


def batches(steps: int):
    text = "counting one two three four five six seven eight nine ten "
    ids = np.array(Letters().encode(text * 20))
    for step in range(steps):
        rows = [ids[step + start : step + start + 32] for start in (0, 7, 11, 19)]
        tokens = np.stack(rows).astype(np.int32)
        yield peft_trainer.TrainingInput(tokens, np.ones_like(tokens))


def model_input(batch):
    mask = batch.input_mask.astype(bool)
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": mask,
        "positions": utils.build_positions_from_mask(mask),
        "attention_mask": utils.make_causal_attn_mask(mask, mask.shape[1]),
    }


@nnx.jit
def loss(module, batch):
    tokens = batch["input_tokens"]
    logits, _ = module(tokens, batch["positions"], None, batch["attention_mask"])
    sums = cross_entropy(logits[:, :-1], tokens[:, 1:])
    return sums.loss_sum / sums.weight_sum


def fine_tune(adapter: LoraConfig | None) -> tuple[float, float, int]:
    """Returns the loss before and after PeftTrainer, and how many arrays it has changed."""
    model = build_model("llama", "tiny", vocab_size=VOCAB, decoder_layers=2, adapter=adapter)
    params = model.init(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
    if adapter is not None:
        params = with_begun_factors(adapter, params)
    module = TunixDecoder(model, params)
    before = jax.tree.map(np.asarray, module.linen()[1])
    batch = model_input(next(batches(1)))
    start = float(loss(module, batch))
    config = peft_trainer.TrainingConfig(eval_every_n_steps=1000, max_steps=40)
    trainer = peft_trainer.PeftTrainer(module, optax.adam(1e-2), config)
    trainer.with_gen_model_input_fn(model_input).train(batches(40))
    after = module.linen()[1]
    changed = jax.tree.map(lambda x, y: not np.array_equal(x, y), before, after)
    return start, float(loss(module, batch)), sum(jax.tree.leaves(changed))


def reinforce() -> tuple[float, float]:
    """Returns the share of the letter e before and after GRPO, which rewards it."""

    def reward(prompts, completions, **others):
        return [text.count("e") / max(1, len(text)) for text in completions]

    model = build_model("llama", "tiny", vocab_size=VOCAB, decoder_layers=2)
    params = model.init(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    rollout = base_rollout.RolloutConfig(
        max_tokens_to_generate=16, max_prompt_length=16, kv_cache_size=48, temperature=1.0
    )
    cluster = rl_cluster.RLCluster(
        actor=TunixDecoder(model, params),
        reference=TunixDecoder(model, params),
        tokenizer=Letters(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.adam(1e-2), eval_every_n_steps=1000, max_steps=20
            ),
            rollout_config=rollout,
        ),
    )
    learner = grpo_learner.GRPOLearner(
        rl_cluster=cluster,
        reward_fns=reward,
        algo_config=grpo_learner.GRPOConfig(num_generations=8, beta=0.0),
    )

    def share() -> float:
        prompts = ["tell", "show", "name", "spell"] * 8
        return float(np.mean(reward(prompts, cluster.rollout.generate(prompts, rollout).text)))

    start = share()
    learner.train([{"prompts": np.array(["tell", "show"])} for _ in range(20)])
    return start, share()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="*", default=FAMILIES)
    parser.add_argument("--skip_training", action="store_true")
    args = parser.parse_args()
    failed = 0
    for family in args.families:
        start = time.process_time()
        same, shortest = greedy(family)
        failed += not same
        print(
            f"{family}: {'equal' if same else 'DIFFERENT'}, {shortest} tokens or more,"
            f" {time.process_time() - start:.0f} CPU s",
            flush=True,
        )
    if not args.skip_training:
        for adapter in (None, LoraConfig(rank=4)):
            before, after, changed = fine_tune(adapter)
            name = "all weights" if adapter is None else "LoRA"
            print(
                f"PeftTrainer, {name}: loss {before:.3f} -> {after:.3f}, {changed} arrays changed"
            )
        before, after = reinforce()
        print(f"GRPO: share of the rewarded letter {before:.1%} -> {after:.1%}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

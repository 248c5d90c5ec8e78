"""Hugging Face's own Flax models, the last release that had them."""

import functools

import jax
import jax.numpy as jnp
import optax

from benchmarks import cases, child, hf


def train(case: cases.Case):
    model = hf.model(case, "Flax")
    batch = {name: jnp.asarray(x, jnp.int32) for name, x in cases.batch(case).items()}
    labels = batch.pop("labels")
    o = cases.OPTIMIZER
    decayed = jax.tree.map(lambda p: p.ndim > 1, model.params)
    adamw = optax.adamw(
        o["learning_rate"], o["b1"], o["b2"], o["eps"], weight_decay=o["weight_decay"], mask=decayed
    )
    tx = optax.chain(optax.clip_by_global_norm(o["clip_norm"]), adamw)

    def loss_of(params):
        logits = model(**batch, params=params, train=False)[0]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        return losses.mean(where=labels != cases.IGNORED)

    def update(params, opt_state):
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    update = jax.jit(update, donate_argnums=(0, 1))
    now = model.params, tx.init(model.params)

    def step() -> dict:
        nonlocal now
        *now, loss = update(*now)
        return {"loss": float(loss)}

    return step


def write(case: cases.Case):
    model = hf.model(case, "Flax")
    model.generation_config.eos_token_id = case.vocab  # none, so that every row is as long
    ids = jnp.asarray(cases.batch(case)["input_ids"], jnp.int32)
    fixed = dict(max_new_tokens=case.target, do_sample=False, pad_token_id=0)

    def run() -> dict:
        return {"ids": model.generate(ids, **fixed).sequences[:, -case.target :].tolist()}

    return run


def matmul() -> None:
    jax.block_until_ready(MULTIPLY(_square(), _square()))


@functools.cache
def _square() -> jax.Array:
    # built lazily, or it would count in the first step
    return jnp.ones((child.MATMUL, child.MATMUL))


MULTIPLY = jax.jit(jnp.dot)

if __name__ == "__main__":
    child.serve({"train": train, "generate": write}, matmul, ["jax", "flax", "transformers"])

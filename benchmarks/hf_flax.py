"""Hugging Face's own Flax models, the last release that had them."""

import cases
import child
import jax
import jax.numpy as jnp
import numpy as np
import optax
import transformers


def build(case: cases.Case):
    if case.family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=case.vocab, n_embd=case.d_model, n_layer=case.layers, n_head=case.heads, n_inner=case.mlp_dim,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        return transformers.FlaxGPT2LMHeadModel(config)
    if case.family == "bert":
        config = transformers.BertConfig(
            vocab_size=case.vocab, hidden_size=case.d_model, num_hidden_layers=case.layers,
            num_attention_heads=case.heads, intermediate_size=case.mlp_dim, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return transformers.FlaxBertForMaskedLM(config)
    config = transformers.T5Config(
        vocab_size=case.vocab, d_model=case.d_model, num_layers=case.layers, num_heads=case.heads, d_ff=case.mlp_dim,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.FlaxT5ForConditionalGeneration(config)


def train(case: cases.Case):
    model = build(case)
    batch = {name: jnp.asarray(x, jnp.int32) for name, x in cases.batch(case).items()}
    labels, o = batch.pop("labels"), cases.OPTIMIZER
    decayed = jax.tree.map(lambda p: p.ndim > 1, model.params)
    adamw = optax.adamw(o["learning_rate"], o["b1"], o["b2"], o["eps"], weight_decay=o["weight_decay"], mask=decayed)
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
    model = build(case)
    ids = jnp.asarray(cases.batch(case)["input_ids"], jnp.int32)
    length = case.target if case.family == "t5" else case.target + case.length

    def run() -> dict:
        options = dict(max_length=length, min_length=length, do_sample=False, pad_token_id=0)
        return {"tokens": int(np.prod(model.generate(ids, **options).sequences.shape))}

    return run


def matmul() -> None:
    jax.block_until_ready(MULTIPLY(SQUARE, SQUARE))


SQUARE = jnp.ones((child.MATMUL, child.MATMUL))
MULTIPLY = jax.jit(jnp.dot)

if __name__ == "__main__":
    versions = {"jax": jax.__version__, "transformers": transformers.__version__}
    child.serve({"train": train, "generate": write}, matmul, versions=versions)

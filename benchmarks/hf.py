"""Configs of cases, shared by the torch and the Flax models of transformers."""

import os

import transformers

from benchmarks.cases import Case

CLASSES = {"gpt2": "GPT2LMHeadModel", "bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration"}


def model(case: Case, prefix: str = ""):
    """Builds a case's model, for generation with the weights that all peers share, else with random
    ones."""
    kind = getattr(transformers, prefix + CLASSES[case.family])
    return (
        kind.from_pretrained(os.environ["BENCHMARK_WEIGHTS"])
        if case.kind == "generate"
        else kind(config(case))
    )


def config(case: Case) -> transformers.PretrainedConfig:
    if case.family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=case.vocab,
            n_embd=case.d_model,
            n_layer=case.layers,
            n_head=case.heads,
            n_inner=case.mlp_dim,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    if case.family == "bert":
        return transformers.BertConfig(
            vocab_size=case.vocab,
            hidden_size=case.d_model,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            intermediate_size=case.mlp_dim,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    return transformers.T5Config(
        vocab_size=case.vocab,
        d_model=case.d_model,
        num_layers=case.layers,
        num_heads=case.heads,
        d_ff=case.mlp_dim,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )

"""Hugging Face transformers on torch, eager; with BENCHMARK_COMPILE=1 under torch.compile."""

import os

import cases
import child
import torch
import torch_models
import transformers

COMPILED = os.environ.get("BENCHMARK_COMPILE") == "1"


def build(case: cases.Case):
    torch.manual_seed(0)
    if case.family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=case.vocab, n_embd=case.d_model, n_layer=case.layers, n_head=case.heads, n_inner=case.mlp_dim,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    if case.family == "bert":
        config = transformers.BertConfig(
            vocab_size=case.vocab, hidden_size=case.d_model, num_hidden_layers=case.layers,
            num_attention_heads=case.heads, intermediate_size=case.mlp_dim, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return transformers.BertForMaskedLM(config)
    config = transformers.T5Config(
        vocab_size=case.vocab, d_model=case.d_model, num_layers=case.layers, num_heads=case.heads, d_ff=case.mlp_dim,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


class Logits(torch.nn.Module):
    """The model, told to return its logits alone."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs).logits


def train(case: cases.Case):
    model = build(case).train()
    model.config.use_cache = False
    return torch_models.train(Logits(model), case, COMPILED)


def write(case: cases.Case):
    model = build(case).eval()
    ids = torch.from_numpy(cases.batch(case)["input_ids"])
    fixed = dict(min_new_tokens=case.target, max_new_tokens=case.target, do_sample=False, pad_token_id=0, eos_token_id=None)

    def run() -> dict:
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **fixed)
        return {"tokens": out.numel()}

    return run


if __name__ == "__main__":
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    child.serve({"train": train, "generate": write}, torch_models.matmul, versions=versions)

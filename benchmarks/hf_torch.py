"""Hugging Face transformers on torch, eager; with BENCHMARK_COMPILE=1 under torch.compile, with its
static cache to write."""

import os

import torch

from benchmarks import cases, child, hf, torch_models

COMPILED = os.environ.get("BENCHMARK_COMPILE") == "1"


class Logits(torch.nn.Module):
    """The model, told to return its logits alone."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs).logits


def train(case: cases.Case):
    torch.manual_seed(0)
    model = hf.model(case).train()
    model.config.use_cache = False
    return torch_models.train(Logits(model), case, COMPILED)


def write(case: cases.Case):
    model = hf.model(case).eval()
    model.generation_config.eos_token_id = None  # so that every row is as long
    ids = torch.from_numpy(cases.batch(case)["input_ids"])
    fixed = dict(
        max_new_tokens=case.target,
        do_sample=False,
        pad_token_id=0,
        attention_mask=torch.ones_like(ids),
    )
    if COMPILED:
        model.forward = torch.compile(model.forward)
        fixed["cache_implementation"] = "static"

    def run() -> dict:
        with torch.inference_mode():
            return {"ids": model.generate(ids, **fixed)[:, -case.target :].tolist()}

    return run


if __name__ == "__main__":
    child.serve({"train": train, "generate": write}, torch_models.matmul, ["torch", "transformers"])

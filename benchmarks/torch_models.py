"""Code shared by the torch peers: the batch as tensors, the step, and the matrix product."""

import torch

from benchmarks import cases, child

SQUARE = torch.ones(child.MATMUL, child.MATMUL)


def train(model: torch.nn.Module, case: cases.Case, compiled: bool):
    """Builds one step of fused AdamW on the mean cross entropy of the labels that count."""
    batch = {name: torch.from_numpy(x) for name, x in cases.batch(case).items()}
    labels = batch.pop("labels").reshape(-1)
    o = cases.OPTIMIZER
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": o["weight_decay"]},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=o["learning_rate"], betas=(o["b1"], o["b2"]), eps=o["eps"], fused=True
    )

    def forward(**inputs):
        logits = model(**inputs)
        return torch.nn.functional.cross_entropy(
            logits.reshape(len(labels), -1), labels, ignore_index=cases.IGNORED
        )

    loss_of = torch.compile(forward) if compiled else forward

    def step() -> dict:
        loss = loss_of(**batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), o["clip_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"loss": loss.item()}

    return step


def matmul() -> None:
    SQUARE @ SQUARE

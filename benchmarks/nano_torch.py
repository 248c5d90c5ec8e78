"""A short GPT in torch, as a careful user writes it for torch.compile: fused attention, one matrix
for q, k and v."""

import torch
from torch import nn
from torch.nn import functional

from benchmarks import cases, child, torch_models


class Block(nn.Module):
    def __init__(self, case: cases.Case):
        super().__init__()
        d = case.d_model
        self.heads = case.heads
        self.norm_1 = nn.LayerNorm(d)
        self.norm_2 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.up = nn.Linear(d, case.mlp_dim)
        self.down = nn.Linear(case.mlp_dim, d)

    def forward(self, x):
        batch, length, width = x.shape
        heads = (
            self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, case: cases.Case):
        super().__init__()
        self.tokens = nn.Embedding(case.vocab, case.d_model)
        self.positions = nn.Embedding(case.length, case.d_model)
        self.blocks = nn.ModuleList(Block(case) for _ in range(case.layers))
        self.norm = nn.LayerNorm(case.d_model)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def train(case: cases.Case):
    torch.manual_seed(0)
    return torch_models.train(Gpt(case), case, compiled=True)


if __name__ == "__main__":
    child.serve({"train": train}, torch_models.matmul, ["torch"])

"""Log-likelihoods of a Llama, by this package and by transformers, beside a float64 computation.

The float64 one is written out here in numpy, rotations and norms included, as both libraries keep
parts of theirs in float32. Texts are passages and lines of a file. Needs torch and transformers.

    python -m benchmarks.float64_llama --model path/to/smollm2 --text book.txt
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file
from scipy.special import expit, log_softmax, softmax

from flaxformer_lite import load_pretrained, load_tokenizer, score

Ids = list[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=4)
    parser.add_argument("--lines", type=int, default=8)
    args = parser.parse_args()
    pairs = texts(args)
    model, params = load_pretrained(args.model)
    torch_model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32
    ).eval()
    exact = Llama(args.model)
    print("| tokens | nats | flaxformer_lite | torch | torch, log_softmax in float64 |")
    print("|--:|--:|--:|--:|--:|")
    for prompt, rest in pairs:
        with torch.no_grad():
            logits = torch_model(torch.tensor([prompt + rest])[:, :-1]).logits[0]
        due = exact.likelihood(prompt, rest)
        ours = float(score(model, params, [prompt], [rest]).log_likelihood[0])
        theirs = of_logits(logits, prompt, rest)
        theirs_wide = of_logits(logits.double(), prompt, rest)
        off = " | ".join(f"{x - due:+.1e}" for x in (ours, theirs, theirs_wide))
        print(f"| {len(rest)} | {due:.3f} | {off} |", flush=True)


def texts(args: argparse.Namespace) -> list[tuple[Ids, Ids]]:
    """Draws passages of 2,000 characters after a bos, and lines after their first 40 characters."""
    rng = random.Random(0)
    text = args.text.read_text()
    tokenizer = load_tokenizer(args.model)

    def encode(part: str) -> Ids:
        return tokenizer.encode(part, special_tokens=False)

    pairs = []
    for _ in range(args.passages):
        start = rng.randrange(len(text) - 2000)
        pairs.append(([tokenizer.ids["bos"]], encode(text[start : start + 2000])))
    lines = [line for line in text.splitlines() if 60 < len(line) < 160 and line[0].isalpha()]
    for line in rng.sample(lines, args.lines):
        pairs.append((encode(line[:40]), encode(line[40:])))
    return pairs


def of_logits(logits_TV: torch.Tensor, prompt: Ids, rest: Ids) -> float:
    """Sums log-probabilities as HFLM does, in the dtype of the logits."""
    logp_TV = torch.log_softmax(logits_TV[len(prompt) - 1 :], dim=-1)
    return float(logp_TV[torch.arange(len(rest)), torch.tensor(rest)].sum())


class Llama:
    """A Llama with tied embeddings in float64."""

    def __init__(self, folder: Path):
        cfg = json.loads((folder / "config.json").read_text())
        self.layers = cfg["num_hidden_layers"]
        self.heads = cfg["num_attention_heads"]
        self.groups = self.heads // cfg["num_key_value_heads"]
        self.size = cfg["head_dim"]
        self.theta = cfg["rope_parameters"]["rope_theta"]
        self.epsilon = cfg["rms_norm_eps"]
        stored = load_file(folder / "model.safetensors")
        self.weights = {name: x.astype(np.float64) for name, x in stored.items()}

    def likelihood(self, prompt: Ids, rest: Ids) -> float:
        logits_TV = self.logits((prompt + rest)[:-1])[len(prompt) - 1 :]
        logp_TV = log_softmax(logits_TV, axis=-1)
        return float(logp_TV[np.arange(len(rest)), rest].sum())

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        table_VD = self.weights["model.embed_tokens.weight"]
        x_TD = table_VD[ids]
        for number in range(self.layers):
            layer = f"model.layers.{number}."
            h_TD = self.norm(x_TD, layer + "input_layernorm")
            x_TD = x_TD + self.attention(h_TD, layer + "self_attn.")
            h_TD = self.norm(x_TD, layer + "post_attention_layernorm")
            gate_TF = self.times(h_TD, layer + "mlp.gate_proj")
            up_TF = self.times(h_TD, layer + "mlp.up_proj")
            x_TD = x_TD + self.times(gate_TF * expit(gate_TF) * up_TF, layer + "mlp.down_proj")
        return self.norm(x_TD, "model.norm") @ table_VD.T

    def attention(self, h_TD: np.ndarray, at: str) -> np.ndarray:
        count = len(h_TD)
        q_TNH = self.rotated(self.times(h_TD, at + "q_proj").reshape(count, -1, self.size))
        k_TKH = self.rotated(self.times(h_TD, at + "k_proj").reshape(count, -1, self.size))
        v_TKH = self.times(h_TD, at + "v_proj").reshape(count, -1, self.size)
        out_TNH = np.empty_like(q_TNH)
        hidden_TS = np.triu(np.ones((count, count), bool), 1)
        for head in range(self.heads):
            group = head // self.groups
            scores_TS = q_TNH[:, head] @ k_TKH[:, group].T / np.sqrt(self.size)
            scores_TS[hidden_TS] = -np.inf
            out_TNH[:, head] = softmax(scores_TS, axis=-1) @ v_TKH[:, group]
        return self.times(out_TNH.reshape(count, -1), at + "o_proj")

    def rotated(self, x_TNH: np.ndarray) -> np.ndarray:
        speeds_H = self.theta ** (-np.arange(0, self.size, 2) / self.size)
        angles_TH = np.arange(len(x_TNH))[:, None] * speeds_H[None, :]
        cos_T1H = np.tile(np.cos(angles_TH), 2)[:, None]
        sin_T1H = np.tile(np.sin(angles_TH), 2)[:, None]
        first, second = np.split(x_TNH, 2, axis=-1)
        return x_TNH * cos_T1H + np.concatenate([-second, first], axis=-1) * sin_T1H

    def norm(self, x_TD: np.ndarray, name: str) -> np.ndarray:
        mean_T1 = np.square(x_TD).mean(axis=-1, keepdims=True)
        return self.weights[name + ".weight"][None, :] * x_TD / np.sqrt(mean_T1 + self.epsilon)

    def times(self, x_TD: np.ndarray, name: str) -> np.ndarray:
        return x_TD @ self.weights[name + ".weight"].T


if __name__ == "__main__":
    main()

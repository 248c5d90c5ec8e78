"""The other side of benchmarks/fine_tuning.py: transformers on torch, with dynamic padding."""

import argparse
import statistics
from pathlib import Path

import numpy as np
import torch
import transformers

from benchmarks.fine_tuning import serve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    data = np.load(args.folder / "data.npz")
    model = transformers.BertForSequenceClassification.from_pretrained(args.folder / "model")
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": float(data["decay"])},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=float(data["rate"]),
        betas=(0.9, float(data["b2"])),
        fused=True,
    )
    warmup = int(data["warmup"])
    steps = int(data["steps"])

    def rate(step: int) -> float:
        fall = max(step - warmup, 0) / max(steps - 1 - warmup, 1)
        return min((step + 1) / max(warmup, 1), 1.0) * max(1 - fall, 0.0)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    splits = {}
    for split in ("train", "eval"):
        ends = np.cumsum(data[f"{split}_counts"])
        rows = np.split(data[f"{split}_ids"].astype(np.int64), ends[:-1])
        splits[split] = rows, data[f"{split}_labels"].astype(np.int64)
    order = data["order"].reshape(-1, int(data["size"]))
    clip = float(data["clip"])
    done = 0

    def padded(split: str, chosen: np.ndarray) -> dict[str, torch.Tensor]:
        rows, labels = splits[split]
        length = max(len(rows[i]) for i in chosen)
        ids = np.full((len(chosen), length), model.config.pad_token_id or 0)
        mask = np.zeros_like(ids)
        for row, i in enumerate(chosen):
            ids[row, : len(rows[i])] = rows[i]
            mask[row, : len(rows[i])] = 1
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels[chosen]}
        return {name: torch.from_numpy(x) for name, x in batch.items()}

    def train(count: int) -> dict[str, float]:
        nonlocal done
        model.train()
        losses = []
        computed = 0
        real = 0
        for _ in range(count):
            batch = padded("train", order[done])
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            computed += batch["input_ids"].numel()
            real += int(batch["attention_mask"].sum())
            done += 1
        return {"computed": computed, "real": real, "loss": statistics.mean(losses)}

    def score() -> dict[str, float]:
        model.eval()
        right = 0
        count = len(splits["eval"][0])
        with torch.inference_mode():
            for chosen in np.array_split(np.arange(count), -(-count // 32)):
                batch = padded("eval", chosen)
                labels = batch.pop("labels")
                right += int((model(**batch).logits.argmax(-1) == labels).sum())
        return {"accuracy": right / count}

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    serve(train, score, versions | {"torch threads": args.threads})


if __name__ == "__main__":
    main()

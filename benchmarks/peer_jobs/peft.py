"""peft: LoRA with transformers' Trainer, on rows that are all LENGTH tokens long."""

from benchmarks.peer_jobs import (
    LENGTH,
    LORA_BATCH,
    LORA_HELD_OUT,
    LORA_RANK,
    LORA_STEPS,
    Case,
    Work,
    draw_dialogues,
)
from benchmarks.peer_jobs.transformers import load, train

WRITTEN = 2  # prompts that ours lets the model answer at the end
ANSWER = 64  # tokens of an answer, at most


def lora(case: Case) -> Work:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer

    def work() -> None:
        tokenizer = AutoTokenizer.from_pretrained(case.writer)
        dialogues = draw_dialogues()
        rows = []
        for row in dialogues:
            prompt = tokenizer(row["prompt"])["input_ids"]
            ids = (prompt + tokenizer(" " + row["response"])["input_ids"])[:LENGTH]
            labels = [-100] * len(prompt) + ids[len(prompt) :]
            rows.append({"input_ids": ids, "labels": labels})
        adapter = LoraConfig(
            r=LORA_RANK, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
        )
        model = get_peft_model(load(case)(), adapter)

        def collate(batch: list[dict]) -> dict:
            return {name: torch.tensor([row[name] for row in batch]) for name in batch[0]}

        train(
            model, rows[LORA_HELD_OUT:], rows[:LORA_HELD_OUT], collate, LORA_STEPS, LORA_BATCH, 2e-4
        )
        prompts = [row["prompt"] for row in dialogues[:WRITTEN]]
        tokenizer.padding_side = "left"
        asked = tokenizer(prompts, return_tensors="pt", padding=True)
        model.generate(**asked, max_new_tokens=ANSWER, do_sample=False)

    return work


JOBS = {"lora": lora}

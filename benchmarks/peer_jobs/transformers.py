"""transformers, as its users do it: eager, with its pipelines and its Trainer."""

import tempfile
from pathlib import Path

from benchmarks.peer_jobs import (
    BATCH,
    BEAMS,
    LENGTH,
    NEW,
    STEPS,
    TEXTS,
    TOKENIZED,
    Case,
    Work,
    draw_prompts,
    draw_texts,
    write_labelled,
)


def load(case: Case) -> Work:
    import torch
    from transformers import AutoModelForCausalLM

    return lambda: AutoModelForCausalLM.from_pretrained(case.writer, dtype=torch.float32)


def tokenize(case: Case) -> Work:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(case.writer)
    texts = draw_texts(TOKENIZED)
    return lambda: [tokenizer(text) for text in texts]


def predict(case: Case) -> Work:
    from transformers import pipeline

    classify_texts = pipeline("text-classification", model=case.classifier, device="cpu")
    texts = draw_texts(TEXTS)
    return lambda: classify_texts(texts, batch_size=case.rows)


def generate(case: Case, **settings: object) -> Work:
    import torch

    if case.form == "int8":
        raise ImportError("transformers has no int8 for a CPU without another package")
    model = load(case)()
    prompts = torch.tensor(draw_prompts(case.rows))
    lengths = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    return lambda: model.generate(prompts, **lengths, **settings)


def beams(case: Case) -> Work:
    return generate(case, num_beams=BEAMS)


def generate_static(case: Case) -> Work:
    return generate(case, cache_implementation="static")


def train(model, rows, held_out, collate, steps: int, batch: int, rate: float) -> None:
    """Trains with Trainer, evaluates before and after as ours does, and saves."""
    from transformers import Trainer, TrainingArguments

    folder = tempfile.mkdtemp()
    settings = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        learning_rate=rate,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=20,
    )
    trainer = Trainer(
        model, settings, train_dataset=rows, eval_dataset=held_out, data_collator=collate
    )
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    trainer.save_model(folder)


def classify(case: Case) -> Work:
    import datasets
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
    )

    path = Path(tempfile.mkdtemp()) / "rows.csv"
    write_labelled(path)

    def work() -> None:
        tokenizer = AutoTokenizer.from_pretrained(case.embedder)
        rows = datasets.load_dataset("csv", data_files=str(path), cache_dir=str(path.parent))
        rows = rows["train"].class_encode_column("label").train_test_split(0.1)
        rows = rows.map(
            lambda row: tokenizer(row["text"], truncation=True, max_length=LENGTH), batched=True
        )
        model = AutoModelForSequenceClassification.from_pretrained(case.embedder, num_labels=2)
        collate = DataCollatorWithPadding(tokenizer)
        train(model, rows["train"], rows["test"], collate, STEPS, BATCH, 5e-5)

    return work


JOBS = {
    "load": load,
    "tokenize": tokenize,
    "predict": predict,
    "generate": generate,
    "beams": beams,
    "classify": classify,
}
STATIC = {"generate": generate_static}

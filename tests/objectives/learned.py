"""Tasks on made rows of whole words, trained through the trainer on tiny models."""

import json

import tokenizers

import flaxformer_lite
from flaxformer_lite.config import DataConfig, OptimizerConfig, TokenizerConfig
from flaxformer_lite.data.labelled import open_rows
from flaxformer_lite.models import bert, gpt2, t5
from flaxformer_lite.runs.evaluate_file import open_file, open_trained
from flaxformer_lite.runs.report import metrics
from flaxformer_lite.runs.start import setup
from flaxformer_lite.text.tokenizer import HuggingFace
from tests.training import tiny_runs

SPECIALS = ["[PAD]", "[EOS]", "[CLS]", "[SEP]", "[UNK]"]
SIZES = {"vocab_size": 0, "d_model": 32, "num_heads": 2, "mlp_dim": 64, "dropout": 0.0}
MODELS = {
    "bert": (bert.config, {"encoder_layers": 1, "max_length": 32}),
    "gpt2": (gpt2.config, {"decoder_layers": 1, "max_length": 32}),
    "t5": (t5.config, {"encoder_layers": 1, "decoder_layers": 1, "head_dim": 16}),
}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def word_level(words):
    """A tokenizer whose tokens are these words, and single characters beside."""
    vocabulary = {word: i for i, word in enumerate([*SPECIALS, *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return HuggingFace(made.to_str().encode())


def config(folder, objective, rows, family="bert", *, length=16, steps=120, **parts):
    """An experiment on rows, of which the last fifth is held out."""
    words = sorted({word for row in rows for text in _texts(row) for word in text.split()})
    (folder / "words").mkdir(exist_ok=True)
    word_level(words).save(folder / "words")
    cut = len(rows) * 4 // 5
    train = {
        "steps": steps,
        "batch_size": 32,
        "log_every": 20,
        "eval_every": steps,
        "checkpoint_every": steps,
    }
    build, sizes = MODELS[family]
    return tiny_runs.config(
        folder,
        train={**train, "eval_batches": 0},
        model=build("tiny", head=objective.head_for(build("tiny").skeleton), **{**SIZES, **sizes}),
        objective=objective,
        data=DataConfig(
            path=write(folder / "train.jsonl", rows[:cut]),
            eval_path=write(folder / "eval.jsonl", rows[cut:]),
            tokenizer=TokenizerConfig(path=str(folder / "words")),
            length=length,
            cache=str(folder / "cache"),
        ),
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=5, schedule="constant"),
        **parts,
    )


def learn(folder, objective, rows, family="bert", **options):
    """Trains; returns the last evaluation's record, the baseline's value, and the run's workdir."""
    cfg = config(folder, objective, rows, family, **options)
    flaxformer_lite.run(cfg, folder / "run")
    ready = setup.prepare_experiment(cfg)
    records = [
        record
        for record in metrics.read(folder / "run" / "metrics.jsonl")
        if record["split"] == "eval"
    ]
    task = ready.cfg.objective
    baseline = task.baseline(ready.eval_data, task.fit_baseline(ready.eval_data))
    return records[-1], baseline[1], folder / "run"


def predict(workdir, path):
    """Returns what the command `predict` adds to each row of a file."""
    trained = open_trained(workdir)
    data = open_file(trained, str(path), predicts=True)
    return data.objective.decode(trained.evaluate(data)[1], data.records)


def encoded(objective, rows, folder, *, length=16, tokenizer=None, skeleton="encoder", fit=True):
    """Records of rows; the tokenizer's words are those of the rows unless one is given."""
    words = sorted({word for row in rows for text in _texts(row) for word in text.split()})
    path = write(folder / "rows.jsonl", rows)
    known = tokenizer or word_level(words)
    if fit:
        roles = [column.role for column in objective.columns]
        objective = objective.fit([{role: row.get(role) for role in roles} for row in rows], {})
    return objective, open_rows(path, DataConfig(length=length), objective, known, skeleton)


def _texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)

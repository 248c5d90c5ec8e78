"""Tasks on made rows of whole words, trained through the trainer on tiny models."""

import tokenizers

import flaxformer_lite
from flaxformer_lite.config import (
    DataConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    required_head,
)
from flaxformer_lite.data.table_examples import open_rows
from flaxformer_lite.models import bert, gpt2, t5
from flaxformer_lite.runs.evaluate_file import open_file, open_trained
from flaxformer_lite.runs.start import initial_state, setup
from flaxformer_lite.text.tokenizer import HuggingFace
from tests.objectives import tables
from tests.objectives.tables import write_rows as write
from tests.training import tiny_runs

SPECIALS = ["[PAD]", "[EOS]", "[CLS]", "[SEP]", "[UNK]"]
SIZES = {"vocab_size": 0, "d_model": 32, "num_heads": 2, "mlp_dim": 64, "dropout": 0.0}
MODELS = {
    "bert": (bert.config, {"encoder_layers": 1, "max_length": 32}),
    "gpt2": (gpt2.config, {"decoder_layers": 1, "max_length": 32}),
    "t5": (t5.config, {"encoder_layers": 1, "decoder_layers": 1, "head_dim": 16}),
}


def word_level(words):
    """A tokenizer whose tokens are these words, and single characters beside."""
    vocabulary = {word: i for i, word in enumerate([*SPECIALS, *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return HuggingFace(made.to_str().encode())


def config(folder, objective, rows, family="bert", *, length=16, steps=120, **parts):
    """An experiment on rows, of which the last fifth is held out."""
    (folder / "words").mkdir(exist_ok=True)
    word_level(_words(rows)).save(folder / "words")
    cut = len(rows) * 4 // 5
    train = dict.fromkeys(("steps", "eval_every", "checkpoint_every"), steps)
    build, sizes = MODELS[family]
    head = required_head(objective, build("tiny").skeleton)
    return tiny_runs.config(
        folder,
        train={**train, "batch_size": 32, "log_every": 20, "eval_batches": 0},
        model=build("tiny", head=head, **{**SIZES, **sizes}),
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
    task = ready.cfg.objective
    baseline = task.baseline(ready.eval_data, task.fit_baseline(ready.eval_data))
    return tables.read_split(folder / "run")[-1], baseline[1], folder / "run"


def predict(workdir, path):
    """Returns what the command `predict` adds to each row of a file."""
    trained = open_trained(workdir)
    data = open_file(trained, str(path), predicts=True)
    return data.objective.decode(trained.evaluate(data)[1], data.records)


def encoded(objective, rows, folder, *, length=16, tokenizer=None, skeleton="encoder", fit=True):
    """Records of rows; the tokenizer's words are those of the rows unless one is given."""
    path = write(folder / "rows.jsonl", rows)
    known = tokenizer or word_level(_words(rows))
    if fit:
        roles = [column.role for column in objective.columns]
        objective = objective.fit([{role: row.get(role) for role in roles} for row in rows], {})
    return objective, open_rows(path, DataConfig(length=length), objective, known, skeleton)


def losses_on_meshes(folder, objective, rows, meshes, **options):
    """The loss of two steps on one batch, on one device and on each mesh."""
    losses = []
    for mesh in ({}, *meshes):
        parts = MeshConfig(**{"data": 1, **mesh})
        ready = setup.prepare_experiment(config(folder, objective, rows, mesh=parts, **options))
        state = initial_state.initial_state(ready.program)
        batch = next(ready.train_batches(0))
        for _ in range(2):
            state, found = ready.program.train_step(state, batch)
        losses.append(float(found["loss"]))
    return losses


def _words(rows):
    return sorted({word for row in rows for text in _texts(row) for word in text.split()})


def _texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)

"""Batches as a pure function of (seed, step).

There is no other state, so a run resumes from a single number.
"""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grain
import jax
import numpy as np

from flaxformer_lite.config import ConfigError, ExperimentConfig, plugin_name
from flaxformer_lite.config.rules import DATASET
from flaxformer_lite.data import find_files
from flaxformer_lite.data.documents import open_corpus
from flaxformer_lite.data.hub_dataset import list_splits
from flaxformer_lite.data.mixing import Mixing, interleave, tag_source
from flaxformer_lite.data.order import endless_finder
from flaxformer_lite.data.padding import Buckets, Packer, columns_used, draw_batches, sides_of
from flaxformer_lite.data.records import ConcatRecords, Stream, find_in_mixture
from flaxformer_lite.data.split import SPLITS
from flaxformer_lite.data.table_examples import open_labelled_stream, open_rows
from flaxformer_lite.data.text_examples import open_mixture, open_records, open_text_rows
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.objectives.rows import Example
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.storage.stores import StorageError
from flaxformer_lite.text.tokenizer import Tokenizer

# A range of grain's has an end; no run reaches this one.
ENDLESS = 1 << 40  # batches
PROBED = 3  # examples that show whether a task's counts are those of its rows
THREADS = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples of one split."""

    split: str  # "train", endless, each epoch shuffled and planned anew, or "eval", a single pass
    objective: Objective
    splits: Mapping[str, Any]  # Records by split; ConcatRecords of a mixture
    fingerprint: str  # hash of content, tokenizer, objective and lengths
    described: tuple[tuple[str, str], ...] = ()  # titles and texts for the banner of a run
    # what the training rows come from, by name; "" where there is no mixture
    sources: Mapping[str, Stream] = dataclasses.field(default_factory=dict)
    mixing: Mixing | None = None  # which source each row of a mixture has

    @property
    def records(self) -> Any:
        return self.splits[self.split]

    def of_split(self, split: str) -> "Dataset":
        """Returns the held-out view of a split: its examples once, in a fixed order."""
        return dataclasses.replace(self, split="eval", splits={"eval": self.splits[split]})

    def with_reference(self, reference: Mapping[str, np.ndarray]) -> "Dataset":
        """Adds a prediction of the starting weights to the examples of each split of a table."""
        splits = {}
        for name, records in self.splits.items():
            splits[name] = dataclasses.replace(records, reference=reference[name])
        return dataclasses.replace(self, splits=splits)

    @property
    def task(self) -> Task:
        """The objective, where it learns from the rows of a table."""
        return cast(Task, self.objective)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.records.tokenizer

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def num_examples(self) -> int:
        return len(self.records)

    @property
    def held(self) -> int | None:
        """The number of examples in the whole training stream; None if it is endless."""
        return self.mixing.total if self.mixing else None

    def batches(
        self,
        *,
        batch_size: int,
        seed: int = 0,
        start_step: int = 0,
        rows: Sequence[int] | np.ndarray | None = None,
        place: Callable[[Example], Any] = lambda batch: batch,
        ahead: int = 0,
        packer: Packer | Buckets | None = None,
    ) -> "Batches":
        """Yields batches of numpy arrays from `start_step` on.

        Each process reads its own rows of the same batches.

        Example p of the endless stream is a function of (seed, p), and row r of batch k is example
        k * batch_size + r, for any number of processes. Each epoch of a text is another plan of
        it (data/order.py). The held-out split does not depend on the seed; its last batch is
        padded with examples of weight 0.

        Args:
          batch_size: rows of a global batch.
          seed: seeds shuffling, masking and noise.
          start_step: number of batches to skip, at no cost.
          rows: the rows of each batch to build; all by default.
          place: applied to each batch before it is yielded.
          ahead: number of batches that a thread places in advance, until the iterator's `close()`.
          packer: packs the batches, or cuts them; None leaves them padded.

        Yields:
          {"inputs": {...}, "targets": {...}}, arrays of [rows, ...], placed; with a packer the
          inputs have `packing`, [groups, rows, width], unless the batch fits none of its shapes.
        """
        own_rows = np.arange(batch_size)
        if rows is not None:
            own_rows = np.asarray(rows)
        trains = self.split == "train"
        find = self.finder(seed)
        total = self.held
        if not trains:
            count = -(-self.num_examples // batch_size)
        elif total is None:
            count = ENDLESS
        else:
            count = total // batch_size

        def read(step: int) -> Example:
            first = int(step) * batch_size
            # only a packer needs the examples of other processes
            needed = own_rows if packer is None else np.arange(batch_size)
            examples = []
            if trains:
                places = {int(row): find(first + int(row)) for row in needed}
                for row in own_rows.tolist():
                    records, number = places[row]
                    examples.append(self.example(number, seed, first + row, records))
                chosen = [number for _, number in places.values()]
            else:
                examples = [self._held_out(first + int(row)) for row in own_rows]
                chosen = [int(self.order[(first + row) % len(self.order)]) for row in needed]
            batch = jax.tree.map(lambda *values: np.stack(values), *examples)
            if packer is None:
                return batch
            return packer.arrange(batch, np.asarray(chosen), own_rows)

        batches = grain.MapDataset.range(count).map(read)
        # Sliced before anything is read, so that the batches before a resumed step cost nothing.
        placed = batches[start_step:].to_iter_dataset(THREADS).map(place)
        prefetch = grain.experimental.ThreadPrefetchIterDataset
        return Batches(iter(prefetch(placed, prefetch_buffer_size=ahead)))

    def packer(self, batch_size: int, ways: int = 1, accumulate: int = 1) -> Packer | None:
        """Returns a packer for the batches of this split, or None.

        It is None where packing is not worth it, or where the objective does not define its
        padding.

        Args:
          batch_size: rows of a whole batch.
          ways: devices that it is split over.
          accumulate: microbatches of each.
        """
        texts = self.texts
        if not texts:
            return None
        packer = Packer(self.token_counts, texts, self.records.length, batch_size, ways, accumulate)
        packer = packer.planned(draw_batches(self.num_examples, batch_size, texts))
        return packer if packer.shapes else None

    def buckets(self, batch_size: int, multiple: int = 1) -> Buckets | None:
        """Returns what cuts the batches of this split behind their longest example, or None.

        It is None where cutting is not worth it, or where it is not known what is padding.

        Args:
          batch_size: rows of a whole batch.
          multiple: a divisor of the widths.
        """
        if not isinstance(self.objective, Task):
            return None
        sizes = np.asarray(self.records.sizes)
        lengths = (self.records.length, self.records.target_length)[: sizes.shape[1]]
        sides = sides_of(self.example(0, 0, 0), lengths)
        if sides is None:
            return None
        for row in {*range(min(PROBED, len(sizes))), *sizes.argmax(axis=0).tolist()}:
            used = columns_used(self.example(row, 0, 0))
            if len(used) != len(lengths) or np.any(used > np.maximum(sizes[row], 1)):
                return None
        draw = draw_batches(self.num_examples, batch_size, 1)
        planned = Buckets(lengths, sizes, sides).planned(draw, multiple)
        return planned if planned.shapes else None

    def token_counts(self, examples: np.ndarray) -> np.ndarray:
        """Returns the number of tokens in each text of the given examples, [examples, texts]."""
        return self.records.text_lengths(examples, self.texts)

    @functools.cached_property
    def texts(self) -> int:
        """The number of texts per example; 0 where the objective does not define its padding."""
        if not isinstance(self.objective, Task) or not self.task.ignores_padding:
            return 0
        length = self.records.length
        texts = 0
        for row in range(min(PROBED, self.num_examples)):
            mask = self.example(row, 0, 0)["inputs"].get("attention_mask")
            if mask is None or mask.shape[-1] != length:
                return 0
            texts = mask.size // length
            last = (mask.reshape(texts, length) * np.arange(1, length + 1)).max(axis=1)
            counts = self.records.text_lengths(np.array([row]), texts)[0]
            if counts.shape != last.shape or (last > np.maximum(counts, 1)).any():
                return 0
        return texts

    def finder(self, seed: int) -> Callable[[int], tuple[Any, int]]:
        """Returns the function that finds example p of the endless stream.

        The function returns the records and the row in them.
        """
        if self.mixing:
            return find_in_mixture(self.sources, self.mixing, seed)
        num_plans = 1
        for stream in self.sources.values():
            num_plans = stream.num_plans

        def open_plan(number: int) -> Any:
            # The records of the first may have a reference, which the stream's have not.
            return self.sources[""].open_plan(number) if number else self.records

        return endless_finder(open_plan, num_plans, seed)

    def example(self, row: int, seed: int, position: int, records: Any = None) -> Example:
        """Builds one example with a random generator seeded by (seed, position).

        It comes from the first plan, unless other `records` are given.
        """
        if records is None:
            records = self.records
        if isinstance(records, ConcatRecords):
            records, row = records.find(row)
        example = self.objective.make_example(records, row, np.random.default_rng([seed, position]))
        if not self.mixing:
            return example
        return tag_source(example, self.sources, records.source)

    def sample_targets(self, split: str) -> Iterator[dict[str, np.ndarray]]:
        """Yields the targets of every example of a split.

        Their order is random but fixed, so any prefix is a fair sample.
        """
        data = dataclasses.replace(self, split=split)
        if self.mixing and split == "train":  # in the proportions in which they are read
            find = self.finder(0)
            size = min(data.num_examples, self.held or data.num_examples)
            places = (find(position) for position in range(size))
        else:
            places = ((data.records, int(row)) for row in data.order)
        for number, (records, row) in enumerate(places):
            yield data.example(row, 0, number, records)["targets"]

    def _held_out(self, position: int) -> Example:
        example = self.example(int(self.order[position % len(self.order)]), 0, position)
        if position < len(self.order):
            return example
        targets = dict(example["targets"])
        for name, values in targets.items():
            if np.issubdtype(values.dtype, np.floating):  # a weight
                targets[name] = np.zeros_like(values)
        return {**example, "targets": targets}

    @functools.cached_property
    def order(self) -> np.ndarray:
        """The order of held-out examples: random but fixed, so any prefix is a fair sample."""
        if self.mixing:
            return interleave(self.records.sizes)
        return np.random.default_rng(0).permutation(self.num_examples)


class Batches(Iterator[Any]):
    """An iterator of grain's that ends with the program.

    Grain's own, where a script keeps it in a global, is closed after grain's modules are gone, and
    prints a traceback.
    """

    def __init__(self, batches: Iterator[Any]):
        self._open = [batches]
        self._close = weakref.finalize(self, self._open.clear)

    def __next__(self) -> Any:
        for batches in self._open:
            return next(batches)
        raise StopIteration

    def close(self) -> None:
        """Stops the thread that places batches; no more are yielded."""
        self._close()


def open_dataset(
    cfg: ExperimentConfig, split: str = "train", labels: tuple[str, ...] = ()
) -> Dataset:
    """Opens the examples that an experiment trains on ("train") or is evaluated on ("eval").

    The first call tokenizes the text and plans its rows in `data.cache`, where later ones look.

    Args:
      cfg: the experiment.
      split: "train" or "eval".
      labels: names of the classes of the weights to start from, whose order a task keeps if it has
        no others.

    Raises:
      ConfigError: the text, tokenizer, cache or lengths cannot work; the message names the field
        and the way out.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be train or eval.")
    cfg = name_held_out(cfg)
    objective = cfg.objective
    if cfg.data.mixture:
        if isinstance(objective, Task):
            raise ConfigError(
                f"data.mixture: {plugin_name(objective)} learns from the rows of one table; set"
                " data.path to it instead."
            )
        mixture = open_mixture(cfg)
        return Dataset(split, objective, *mixture)
    described: list[tuple[str, str]] = []
    if isinstance(objective, Task):
        objective, stream, described = open_labelled_stream(cfg, labels)
    else:
        stream = open_text_rows(cfg, cfg.data)
        if split == "train":
            rows = cfg.train.steps * cfg.train.batch_size
            stream.prepare(cfg.train.epochs or rows / len(stream.splits["train"]))
    return Dataset(
        split, objective, stream.splits, stream.fingerprint, tuple(described), {"": stream}
    )


def name_held_out(cfg: ExperimentConfig) -> ExperimentConfig:
    """Returns the config with the held-out split of a dataset on the Hub as data.eval_path.

    It is as it was if it names held-out text or rows, or if the address names a split itself.

    Raises:
      StorageError: the dataset cannot be read.
    """
    data = cfg.data
    if data.eval_path or not DATASET.fullmatch(data.path):
        return cfg
    try:
        splits = list_splits(data.path)
    except StorageError as error:
        raise StorageError(f"data.path: {error}") from None
    for name in find_files.SPLITS["eval"]:
        if name in splits:
            eval_path = f"{data.path.rstrip('/')}/{name}"
            return dataclasses.replace(cfg, data=dataclasses.replace(data, eval_path=eval_path))
    return cfg


def open_file(
    cfg: ExperimentConfig, path: str, tokenizer: Tokenizer, *, predicts: bool = False
) -> Dataset:
    """Opens a file as held-out examples.

    Args:
      cfg: the experiment that a model was trained by, with its tokenizer's path.
      path: a table for tasks; text for other objectives, as data.path.
      tokenizer: the model's.
      predicts: whether the columns that the task predicts are ignored; they may be missing.

    Raises:
      ConfigError: the file cannot be read, is of another form, or is too short.
    """
    objective = cfg.objective
    if isinstance(objective, Task):
        model = cfg.model.skeleton, cfg.model.type_vocab_size
        records = open_rows(path, cfg.data, objective, tokenizer, *model, predicts=predicts)
        return Dataset("eval", objective, {"eval": records}, "")
    if predicts:
        raise ConfigError(
            f"{plugin_name(objective)} predicts tokens, not rows: generate shows them."
        )
    return open_text(cfg, path)


def open_text(cfg: ExperimentConfig, path: str) -> Dataset:
    """Opens an entire text as held-out examples.

    Args:
      cfg: the experiment that a model was trained by, with its tokenizer's path.
      path: a file or folder, like data.path.

    Raises:
      ConfigError: it cannot be read, or is too short.
    """

    named = dict(pair.split("=", 1) for pair in cfg.data.columns.split(",") if pair)
    fields = set()
    for source in cfg.data.mixture.values():
        if source.path:
            fields.add(source.text_field or cfg.data.text_field)
    field = cfg.data.text_field
    if len(fields) == 1:
        field = fields.pop()
    data = dataclasses.replace(
        cfg.data,
        path=path,
        text_field=named.get("text") or field,
        eval_path="",
        mixture={},
        mixture_temperature=0.0,
        mixture_schedule="",
    )
    objective = cfg.objective
    try:
        corpus = open_corpus(
            data, objective.columns, skeleton=cfg.model.skeleton, all_held_out=True
        )
    except ConfigError as error:
        raise ConfigError(
            str(error).replace("--config.data.text_field=", "--columns=text=")
        ) from error
    records = open_records(data, corpus, objective, "eval")
    splits = {"eval": records}
    stream = Stream(corpus.source, splits, corpus.fingerprint, lambda _: records, corpus=corpus)
    return Dataset("eval", objective, splits, corpus.fingerprint, sources={"": stream})

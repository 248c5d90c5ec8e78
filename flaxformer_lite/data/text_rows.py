"""A tokenized text with the rows of each of its plans."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Mapping

from flaxformer_lite.config import ConfigError, DataConfig, ExperimentConfig, plugin_name
from flaxformer_lite.data.corpus import Corpus, Records, open_corpus, open_records
from flaxformer_lite.data.epochs import endless_finder
from flaxformer_lite.data.split import SPLITS
from flaxformer_lite.objectives.rows import CountedRecords
from flaxformer_lite.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class TextRows:
    """The rows of both splits of a text, and the plans of its epochs."""

    corpus: Corpus
    splits: Mapping[str, Records]  # the training split in its first packing
    open_plan: Callable[[int], Records]  # opens one of `num_plans` of the training split
    num_plans: int
    fingerprint: str  # hash of text, tokenizer, objective and lengths

    def finder(self, seed: int) -> Callable[[int], tuple[Records, int]]:
        """Returns the function that finds row p of the endless stream of training rows.

        The function returns the records and the row in them.
        """
        return endless_finder(self.open_plan, self.num_plans, seed)

    def rows_of(self, epochs: float) -> int:
        """Returns the number of training rows in `epochs` epochs, rounded up."""
        full = int(epochs)
        cycles, rest = divmod(full, self.num_plans)
        count = sum(len(self.open_plan(n)) for n in range(rest))
        if cycles:
            count += cycles * sum(len(self.open_plan(n)) for n in range(self.num_plans))
        if epochs > full:
            last = len(self.open_plan(full % self.num_plans)) * (epochs - full)
            count += math.ceil(last - 1e-6)
        return count

    def prepare(self, epochs: float) -> None:
        """Plans the plans of the first `epochs` epochs now, while the disk has room."""
        for number in range(min(math.ceil(epochs), self.num_plans)):
            self.open_plan(number)


def open_text_rows(
    cfg: ExperimentConfig, data: DataConfig, name: str = "", mixture: CountedRecords | None = None
) -> TextRows:
    """Opens the rows of a text.

    The first call tokenizes and packs the text into `data.cache`.

    Args:
      cfg: the experiment.
      data: its data section, or that of one source of a mixture.
      name: the name of the source.
      mixture: the training records of all of the mixture's sources, once they are open.

    Raises:
      ConfigError: the text, tokenizer, cache or lengths cannot work; the message names the field
        and the way out.
    """
    objective = cfg.objective
    corpus = open_corpus(data, objective.fields, skeleton=cfg.model.skeleton)
    missing = [name for name in objective.needs if getattr(corpus.tokenizer, name) in (None, ())]
    if missing:
        way_out = "leave the path empty to train one"
        if cfg.train.init_from:
            way_out = "choose another objective"
        raise ConfigError(
            f"data.tokenizer.path={data.tokenizer.path!r}: has no {', '.join(missing)}, which"
            f" {plugin_name(objective)} needs; {way_out}."
        )
    check_vocabulary(cfg, corpus.tokenizer)

    @functools.cache
    def opened(split: str, number: int = 0) -> Records:
        records = open_records(data, corpus, objective, split, number)
        return dataclasses.replace(records, source=name, mixture=mixture)

    splits = {split: opened(split) for split in SPLITS}
    for records in splits.values():
        objective.check(cfg.model, records)
    shape = splits["train"].length, splits["train"].target_length
    key = hashlib.sha256(f"{corpus.fingerprint} {objective!r} {shape}".encode()).hexdigest()[:16]
    return TextRows(corpus, splits, functools.partial(opened, "train"), objective.num_plans, key)


def check_vocabulary(cfg: ExperimentConfig, known: Tokenizer) -> None:
    """Rejects a model whose vocabulary is smaller than its tokenizer's."""
    used = known.vocab_size
    published = cfg.train.init_from
    if published and "sentinel_ids" not in cfg.objective.needs:
        used = min((used, *known.sentinel_ids))  # published models other than T5 lack sentinels
    if 0 < cfg.model.vocab_size < used:
        way_out = "model.vocab_size=0 to follow it"
        if published:
            way_out = f"data.tokenizer.path to the tokenizer of {published}"
        raise ConfigError(
            f"model.vocab_size={cfg.model.vocab_size}: the tokenizer has {known.vocab_size}; set"
            f" {way_out}."
        )

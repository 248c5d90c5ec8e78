"""Opens the tokenizer that `data.tokenizer` names, or trains one on a sample of the data."""

import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from flaxformer_lite.config import ConfigError, DataConfig, ExperimentConfig, TokenizerConfig
from flaxformer_lite.data.digests import digest_of
from flaxformer_lite.storage import content_cache, fetch
from flaxformer_lite.text import folder_rules, older_files, tokenizer, tokenizer_training
from flaxformer_lite.text.tokenizer import Tokenizer


def open_tokenizer(
    path: str | Path, add: Collection[str] = (), frame: str = "published"
) -> Tokenizer:
    """Loads a tokenizer from a local file or folder, or from an address in a store.

    Args:
      path: as in `text.tokenizer.load`, or a gs:// or s3:// address.
      add: tokens that it gets, unless it has them.
      frame: as in `text.tokenizer.load`.

    Raises:
      ConfigError: there is no such file, it cannot be read as a tokenizer, or its vocabulary is
        fixed and `add` names others.
    """

    def choose(names: list[str]) -> list[str]:
        """Selects the files of a folder to download."""
        read = (*tokenizer.FILES, *older_files.list_files(), folder_rules.SENTENCES)
        return [name for name in read if name in names]

    local = fetch.on_disk(path, choose)
    return tokenizer.load(local, given=path, frame=frame).with_tokens(add)


def make_tokenizer(cfg: TokenizerConfig, train: Callable[[], Path]) -> Tokenizer:
    """Returns the tokenizer that a config names.

    Args:
      cfg: data.tokenizer.
      train: returns the folder of one that is trained on the data, if the config asks for that.

    Raises:
      ConfigError: as in `open_tokenizer`.
    """
    if cfg.path:
        return open_tokenizer(cfg.path, cfg.add, cfg.frame)
    if cfg.name == "bytes":
        return tokenizer.Bytes().with_tokens(cfg.add)
    return tokenizer.load(train()).with_tokens(cfg.add)


def train_tokenizer(
    cfg: DataConfig,
    data: list[object],
    characters: Callable[[], float],
    texts: Callable[[int], Iterable[str]],
) -> Path:
    """Returns the folder of a tokenizer that is trained on a sample, unless it is cached.

    Args:
      cfg: the data section.
      data: what tells the data from others.
      characters: counts or estimates them.
      texts: returns every n-th text that there is to train on, for the n that it is given.
    """

    def write(folder: Path) -> None:
        most = tokenizer_training.MOST[cfg.tokenizer.name]
        sample = texts(max(1, math.ceil(characters() / most)))
        tokenizer_training.train(cfg.tokenizer, sample).save(folder)

    digest = digest_of([*data, *cfg.tokenizer.training])
    return content_cache.folder(cfg.cache, f"tokenizer-{digest}", write)


def check_vocabulary(cfg: ExperimentConfig, known: Tokenizer) -> None:
    """Rejects a model whose vocabulary is smaller than its tokenizer's."""
    used = known.vocab_size
    published = cfg.train.init_from
    if published and "sentinel_ids" not in cfg.objective.needs:
        used = min((used, *known.sentinel_ids))  # published models other than T5 lack sentinels
    if 0 < cfg.model.vocab_size < used:
        way_out = "model.vocab_size=0 to follow it"
        if published:
            way_out = (
                f"data.tokenizer.path to the tokenizer of {published}, or data.tokenizer.add to the"
                " tokens that its table lacks, which get rows"
            )
        raise ConfigError(
            f"model.vocab_size={cfg.model.vocab_size}: the tokenizer has {known.vocab_size}; set"
            f" {way_out}."
        )

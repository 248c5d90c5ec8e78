"""Opens the tokenizer that `data.tokenizer.path` names."""

from flaxformer_lite.config import TokenizerConfig
from flaxformer_lite.storage import fetch
from flaxformer_lite.text import lower_case, older_files, tokenizer
from flaxformer_lite.text.tokenizer import Tokenizer


def open_tokenizer(cfg: TokenizerConfig) -> Tokenizer:
    """Loads a tokenizer from a local file or folder, or from an address in a store.

    Args:
      cfg: its path, as in `text.tokenizer.load`, or a gs:// or s3:// address; and tokens to add.

    Raises:
      ConfigError: there is no such file, it cannot be read as a tokenizer, or has a fixed
        vocabulary that tokens are to be added to.
    """

    def choose(names: list[str]) -> list[str]:
        """Selects the files of a folder to download."""
        read = (*tokenizer.FILES, *older_files.READ, lower_case.FILE)
        return [name for name in read if name in names]

    return tokenizer.load(fetch.on_disk(cfg.path, choose), given=cfg.path).with_tokens(cfg.add)

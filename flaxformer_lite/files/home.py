"""The home folder that `~` stands for."""

from pathlib import Path

from flaxformer_lite.config import ConfigError


def expand_home(path: str | Path) -> Path:
    """Replaces `~` or `~user` at the beginning of a path by the home folder.

    Raises:
      ConfigError: there is none, as HOME is unset and the user is in no list, or no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{path}: there is no such home folder; set HOME, or write a path without ~."
        ) from None

"""Models on the Hugging Face Hub, by huggingface_hub: `hf://ORG/NAME`, `hf://ORG/NAME@REVISION`.

The library's cache, login and variables hold: HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import contextlib
import glob
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flaxformer_lite.config.rules import HUB, is_model_place
from flaxformer_lite.storage.stores import StorageError, name_copy

LOG = logging.getLogger("flaxformer_lite")
LOGIN = "set HF_TOKEN, or log in: hf auth login"
SERVER_ERROR = 500  # statuses from here on may pass
OLD = ("model*.safetensors", "model.safetensors.index.json")  # replaced by a push


def is_hub(path: object) -> bool:
    """Returns whether a path is an address on the Hub."""
    return str(path).startswith("hf://")


def name_of(address: str) -> str:
    """Returns the ORG/NAME of an address."""
    return _split(address)[0]


def on_disk(
    address: str,
    choose: Callable[[list[str]], list[str]],
    is_whole: Callable[[list[str]], bool] = bool,
) -> Path:
    """Downloads the files of a model to the Hub's cache, and returns their folder.

    If the Hub cannot be reached, or HF_HUB_OFFLINE is set, a copy in the cache is used.

    Args:
      address: `hf://ORG/NAME` or `hf://ORG/NAME@REVISION`.
      choose: selects the files to download, from all names.
      is_whole: whether the chosen files of a copy in the cache suffice.

    Raises:
      StorageError: there is no such model or revision, it is gated, or it is neither reachable nor
        in the cache.
    """
    library = _library(address)
    name, revision = _split(address)
    with _explained(address, library):
        try:
            # Asked once; list_repo_files would try a server that is not there for half a minute.
            siblings = library.HfApi().model_info(name, revision=revision).siblings
        except (library.errors.HTTPError, OSError) as error:
            if _status(error) and _status(error) < SERVER_ERROR:
                raise
            try:
                cached = library.snapshot_download(name, revision=revision, local_files_only=True)
            except library.errors.LocalEntryNotFoundError:
                raise error from None
            folder = Path(cached)
            names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
            if not is_whole(choose(names)):  # such as its tokenizer alone
                raise
            if not library.constants.HF_HUB_OFFLINE:
                LOG.warning("%s: the hub cannot be reached; read from its cache.", address)
        else:
            names = [sibling.rfilename for sibling in siblings or ()]
            chosen = [glob.escape(file) for file in choose(names)]
            folder = Path(library.snapshot_download(name, revision=revision, allow_patterns=chosen))
    name_copy(folder, address)
    return folder


def check_push(address: str) -> None:
    """Refuses an address that nothing can be pushed to, before the work is done.

    Raises:
      StorageError: it names a revision, or huggingface_hub is not installed.
    """
    _, revision = _split(address)
    if revision:
        raise StorageError(
            f"{address}: a push makes a new commit of the main branch; leave out @{revision}."
        )
    _library(address)


def push(folder: Path, address: str) -> str:
    """Commits the files of a folder to a model on the Hub, which is created if it is missing.

    Earlier weights are deleted in the same commit, unless an adapter is pushed; its other files
    stay, and so does its card.

    Returns:
      The address of the commit.

    Raises:
      StorageError: the token may not write there, or the Hub cannot be reached.
    """
    check_push(address)
    library = _library(address)
    name, _ = _split(address)
    with _explained(address, library):
        api = library.HfApi()
        api.create_repo(name, exist_ok=True)
        kept = ["README.md"] if api.file_exists(name, "README.md") else None
        replaced = list(OLD) if any(folder.glob(OLD[0])) else None
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            ignore_patterns=kept,
            commit_message="Upload by flaxformer_lite",
            delete_patterns=replaced,
        )
    return str(commit.commit_url)


def _split(address: str) -> tuple[str, str | None]:
    """Returns the name and the revision of an address."""
    problem = is_model_place(str(address))
    if problem:
        raise StorageError(f"{address}: {problem}")
    match = HUB.fullmatch(str(address))
    assert match is not None  # is_model_place says so
    return match[1], match[2]


def _library(address: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise StorageError(
            f"{address}: needs huggingface_hub; pip install 'flaxformer_lite[hub]', or download the"
            " model and pass its folder."
        ) from None
    return huggingface_hub


@contextlib.contextmanager
def _explained(address: str, library: Any) -> Iterator[None]:
    """Describes errors of the library in one sentence."""
    errors = library.errors
    name, revision = _split(address)
    page = f"{library.constants.ENDPOINT}/{name}"
    try:
        yield
    except StorageError:
        raise
    except errors.GatedRepoError:
        raise StorageError(
            f"{address}: is gated; accept its terms on {page}, and {LOGIN}."
        ) from None
    except errors.RepositoryNotFoundError:
        raise StorageError(
            f"{address}: there is no such model on {library.constants.ENDPOINT}, or it is private;"
            f" check the name, and for a private one {LOGIN}."
        ) from None
    except errors.RevisionNotFoundError:
        raise StorageError(
            f"{address}: has no branch, tag or commit {revision}; {page}/tree/main lists them."
        ) from None
    except errors.OfflineModeIsEnabled:
        raise StorageError(
            f"{address}: is not in {library.constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids to"
            " download it; unset it, or download the model where there is a network."
        ) from None
    except (errors.HTTPError, OSError) as error:
        if _status(error) in (401, 403):
            raise StorageError(f"{address}: access is forbidden; {LOGIN}.") from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StorageError(
            f"{address}: the hub cannot be reached ({reason}), and its cache does not hold the"
            " model; check the network and HF_ENDPOINT, or pass a folder."
        ) from None
    except ValueError as error:  # a name that the Hub does not allow
        raise StorageError(f"{address}: {str(error).splitlines()[0]}") from None


def _status(error: Exception) -> int:
    """Returns the HTTP status of an error, or 0 if there was no answer."""
    return getattr(getattr(error, "response", None), "status_code", 0)

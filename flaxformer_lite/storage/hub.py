"""The Hugging Face Hub, by huggingface_hub.

Models are `hf://ORG/NAME` or `hf://ORG/NAME@REVISION`, and datasets `hf://datasets/ORG/NAME`, which
a path in the repository may follow. The library's cache, login and variables hold: HF_HOME,
HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE.
"""

import contextlib
import glob
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from flaxformer_lite.config.rules import DATASET, HUB, is_model_place
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.storage.stores import StorageError

LOG = logging.getLogger("flaxformer_lite")
LOGIN = "set HF_TOKEN, or log in: hf auth login"
SERVER_ERROR = 500  # statuses from here on may pass
COMMIT = re.compile("[0-9a-f]{40}")
# What the library raises on an answer that lacks a field, or has one of another type.
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, AssertionError)
BYTES_AT_ONCE = 1 << 20  # bytes that are read at once
OLD = ("model*.safetensors", "model.safetensors.index.json")  # replaced by a push


class Address(NamedTuple):
    """The parts of an address."""

    kind: str  # of repository: "model" or "dataset"
    name: str  # ORG/NAME
    revision: str | None
    path: str = ""  # what follows, of a dataset


class Snapshot(NamedTuple):
    """One commit of a repository."""

    address: str
    commit: str
    names: list[str]  # of its files; of a cached one, of those that are there
    cached: Path | None = None  # its folder in the cache, where the Hub cannot be reached
    failure: Exception | None = None  # why it cannot


def is_hub(path: object) -> bool:
    """Returns whether a path is an address on the Hub."""
    return str(path).startswith("hf://")


def name_of(address: str) -> str:
    """Returns the ORG/NAME of a model's address.

    Raises:
      StorageError: it is not the address of a model.
    """
    problem = is_model_place(address)
    if problem:
        raise StorageError(f"{address}: {problem}")
    return read_address(address).name


def read_address(address: str) -> Address:
    """Returns the parts of an address.

    Raises:
      StorageError: it is none, or a list of several.
    """
    dataset = DATASET.fullmatch(address)
    if dataset:
        return Address("dataset", dataset[1], dataset[2], dataset[3].strip("/"))
    match = HUB.fullmatch(address)
    if match is None:
        raise StorageError(
            f"{address}: must be one address on the hub, hf://ORG/NAME or hf://datasets/ORG/NAME."
        )
    return Address("model", match[1], match[2])


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
    name_of(address)  # no dataset
    snapshot = open_snapshot(address)
    chosen = choose(snapshot.names)
    if snapshot.cached:
        if not is_whole(chosen):  # such as its tokenizer alone
            refuse_cached(snapshot)
        warn_cached(snapshot)
    return download(snapshot, chosen, read_address(address).revision)


def open_snapshot(address: str) -> Snapshot:
    """Asks the Hub for the newest commit of a repository, or looks for it in the Hub's cache.

    Raises:
      StorageError: as `on_disk`.
    """
    library = _library(address)
    kind, name, revision, _ = read_address(address)
    with _explained(address, library):
        try:
            # Asked once; list_repo_files would try a server that is not there for half a minute.
            info = library.HfApi().repo_info(name, repo_type=kind, revision=revision)
        except (library.errors.HTTPError, OSError) as error:
            if _status(error) and _status(error) < SERVER_ERROR:
                raise
            try:
                # No patterns match no file: huggingface_hub 2 refuses a folder that lacks some.
                cached = library.snapshot_download(
                    name,
                    repo_type=kind,
                    revision=revision,
                    local_files_only=True,
                    allow_patterns=[],
                )
            except library.errors.LocalEntryNotFoundError:
                raise error from None
            folder = Path(cached)
            names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
            return Snapshot(address, folder.name, names, folder, error)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        if not COMMIT.fullmatch(info.sha):
            raise ValueError(f"a commit {quote_value(info.sha)}")
        for file in names:
            if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
                raise ValueError(f"a file {quote_value(file)}")
    return Snapshot(address, info.sha, names)


def refuse_cached(snapshot: Snapshot) -> None:
    """Raises what kept from the Hub, as the cache does not suffice."""
    with _explained(snapshot.address, _library(snapshot.address)):
        assert snapshot.failure is not None
        raise snapshot.failure


def warn_cached(snapshot: Snapshot) -> None:
    """Says that the Hub could not be reached, unless that was asked for."""
    if not _library(snapshot.address).constants.HF_HUB_OFFLINE:
        LOG.warning("%s: the hub cannot be reached; read from its cache.", snapshot.address)


def download(snapshot: Snapshot, files: list[str], revision: str | None = None) -> Path:
    """Downloads files of a commit to the Hub's cache, unless they are there; returns their folder.

    What is downloaded is compared with its digest, and removed if it differs.

    Args:
      snapshot: the commit.
      files: their names.
      revision: by which the cache shall know the commit later, where there is no Hub.

    Raises:
      StorageError: as `on_disk`.
    """
    library = _library(snapshot.address)
    kind, name, _, _ = read_address(snapshot.address)
    folder = snapshot.cached
    if folder is None:
        new = []
        with _explained(snapshot.address, library):
            for file in files:
                known = library.try_to_load_from_cache(
                    name, file, repo_type=kind, revision=snapshot.commit
                )
                if not isinstance(known, str):
                    new.append(file)
            downloaded = library.snapshot_download(
                name,
                repo_type=kind,
                revision=revision,
                allow_patterns=[glob.escape(file) for file in files],
            )
        folder = Path(downloaded)
        for file in new:
            _check_digest(folder / file, f"{snapshot.address}/{file}")
    elif not all((folder / file).is_file() for file in files):
        refuse_cached(snapshot)
    return folder


def read_card(file: Path) -> Json:
    """Returns the header of a repository's README.md; {} if it has none that can be read."""
    import huggingface_hub
    import yaml

    try:
        return huggingface_hub.metadata_load(file) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        LOG.warning("%s: its header cannot be read (%s).", file, str(error).splitlines()[0])
        return {}


def check_push(address: str) -> None:
    """Refuses an address that nothing can be pushed to, before the work is done.

    Raises:
      StorageError: it names a revision, huggingface_hub is not installed, or HF_HUB_OFFLINE is set.
    """
    name_of(address)
    revision = read_address(address).revision
    if revision:
        raise StorageError(
            f"{address}: a push makes a new commit of the main branch; leave out @{revision}."
        )
    if _library(address).constants.HF_HUB_OFFLINE:
        raise StorageError(f"{address}: HF_HUB_OFFLINE forbids to push to it; unset it.")


def push(folder: Path, address: str) -> str:
    """Commits the files of a folder to a model on the Hub, which is created if it is missing.

    Earlier weights are deleted in the same commit, unless an adapter is pushed; its other files
    stay, and so does its card.

    Returns:
      The address of the commit.

    Raises:
      StorageError: the token may not write there, or the Hub cannot be reached or fails.
    """
    check_push(address)
    library = _library(address)
    name = name_of(address)
    with _explained(address, library, "nothing was pushed; run the same command again"):
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


def _library(address: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise StorageError(
            f"{address}: needs huggingface_hub; pip install 'flaxformer_lite[hub]', or download"
            " its files and pass their folder."
        ) from None
    return huggingface_hub


def _check_digest(file: Path, address: str) -> None:
    """Removes a downloaded file whose content is not what the Hub has, and refuses it.

    In the library's cache, a file of a commit is a link to one named by its digest: SHA-256, or
    git's of small files. Servers that stand for the Hub may name other things, which say nothing.
    """
    if not file.is_symlink():  # on file systems without links
        return
    copy = file.parent / os.readlink(file)
    with copy.open("rb") as content:
        if re.fullmatch("[0-9a-f]{64}", copy.name):
            found = hashlib.sha256()
        elif re.fullmatch("[0-9a-f]{40}", copy.name):
            found = hashlib.sha1(f"blob {copy.stat().st_size}\0".encode())
        else:
            return
        while block := content.read(BYTES_AT_ONCE):
            found.update(block)
    if found.hexdigest() == copy.name:
        return
    file.unlink()
    copy.unlink()
    raise StorageError(
        f"{address}: what was downloaded has another digest than on the hub, {found.hexdigest()},"
        f" not {copy.name}, and was removed; run the same command again."
    )


@contextlib.contextmanager
def _explained(
    address: str,
    library: Any,
    otherwise: str = "its cache does not hold it; check the network and HF_ENDPOINT, or pass a"
    " folder",
) -> Iterator[None]:
    """Describes errors of the library in one sentence.

    Args:
      address: of the repository.
      library: huggingface_hub.
      otherwise: what to do if the Hub fails.
    """
    errors = library.errors
    kind, name, revision, _ = read_address(address)
    endpoint = library.constants.ENDPOINT
    page = f"{endpoint}/{name}"
    if kind == "dataset":
        page = f"{endpoint}/datasets/{name}"
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
            f"{address}: there is no such {kind} on {endpoint}, or it is private;"
            f" check the name, and for a private one {LOGIN}."
        ) from None
    except errors.RevisionNotFoundError:
        raise StorageError(
            f"{address}: has no branch, tag or commit {revision}; {page}/tree/main lists them."
        ) from None
    except errors.OfflineModeIsEnabled:
        raise StorageError(
            f"{address}: is not in {library.constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids to"
            f" download it; unset it, or download the {kind} where there is a network."
        ) from None
    except errors.HFValidationError as error:  # a name that the Hub does not allow
        raise StorageError(f"{address}: {_first_line(error)}") from None
    except (errors.HTTPError, OSError) as error:
        if _status(error) in (401, 403):
            raise StorageError(f"{address}: access is forbidden; {LOGIN}.") from None
        if getattr(error, "filename", None):  # no answer, but a file on this machine
            raise StorageError(
                f"{address}: {error.filename} cannot be used ({error.strerror}); name another"
                " folder for the cache with HF_HOME."
            ) from None
        failed = "cannot be reached"
        if _status(error):
            failed = "answers with an error"
        raise StorageError(
            f"{address}: the hub {failed} ({_first_line(error)}), and {otherwise}."
        ) from None
    except MALFORMED as error:
        raise StorageError(
            f"{address}: {endpoint} does not answer as the hub does"
            f" ({type(error).__name__}: {_first_line(error)}); check the network, which may ask for"
            " a login, and HF_ENDPOINT."
        ) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _status(error: Exception) -> int:
    """Returns the HTTP status of an error, or 0 if there was no answer."""
    return getattr(getattr(error, "response", None), "status_code", 0)

"""Reads queries, documents and their relevance: folders of BEIR, or rows of pairs."""

from collections.abc import Mapping
from pathlib import Path

from flaxformer_lite.config import ConfigError
from flaxformer_lite.data.row_files import read_lines
from flaxformer_lite.data.rows import Table, open_table
from flaxformer_lite.data.table_splits import by_role
from flaxformer_lite.files.read import quote_value
from flaxformer_lite.inference.retrieval import SearchData
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings, texts_of_row

CORPUS = ("corpus.jsonl", "corpus.jsonl.gz")
QUERIES = ("queries.jsonl", "queries.jsonl.gz")
FORMS = "a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv, as BEIR has them"
COLUMNS = {"query": "query-id", "document": "corpus-id", "score": "score"}


def is_beir(path: str) -> bool:
    """Returns whether a path is a folder of BEIR, or the file of judgements in one."""
    return _folder(Path(path)) is not None


def read_beir(path: str, where: str) -> SearchData:
    """Reads a folder of BEIR.

    That is corpus.jsonl (`_id`, `title`, `text`), queries.jsonl (`_id`, `text`), and judgements in
    qrels/test.tsv or qrels.tsv (`query-id`, `corpus-id`, `score`). A document's text is its title,
    a space and its text. Documents with a score above 0 are right; queries without one are left
    out.

    Args:
      path: the folder, or one of the files of judgements in it, such as qrels/dev.tsv.
      where: the field and value to name in errors.

    Raises:
      ConfigError: a file or a column is missing, or ids do not fit each other.
    """
    folder = _folder(Path(path))
    if folder is None:
        raise ConfigError(f"{where}: must be {FORMS}.")
    judged = _judgements(Path(path), folder, where)
    queries = _texts(_one_of(folder, QUERIES), where)
    corpus = _texts(_one_of(folder, CORPUS), where)
    relevant: dict[str, set[str]] = {}
    for row in judged.rows:
        query = str(row[COLUMNS["query"]])
        document = str(row[COLUMNS["document"]])
        if _score(row, judged.where) <= 0:
            continue
        if document not in corpus:
            raise ConfigError(
                f"{judged.where}: corpus-id={quote_value(document)} is not in corpus.jsonl; the"
                " files do not belong together."
            )
        relevant.setdefault(query, set()).add(document)
    known = {query: text for query, text in queries.items() if query in relevant}
    if not known:
        raise ConfigError(
            f"{judged.where}: no query of queries.jsonl has a document with a score above 0; the"
            " files do not belong together."
        )
    return SearchData(known, corpus, {query: relevant[query] for query in known})


def read_pairs(path: str, where: str, columns: str = "", *, documents: str = "") -> SearchData:
    """Reads rows of a query, its answer and, if there are some, negatives.

    All answers and negatives of the file are the documents; equal texts are one. All answers of
    equal queries are right.

    Args:
      path: a table, as data/rows.py reads it.
      where: the field and value to name in errors.
      columns: `anchor=NAME,positive=NAME,negatives=NAME` where columns have other than usual names.
      documents: a text file with further documents to search, one per line.

    Raises:
      ConfigError: the table cannot be read, or lacks a column.
    """
    table = open_table(path, where, "eval")
    queries: dict[str, str] = {}
    corpus: dict[str, str] = {}
    relevant: dict[str, set[str]] = {}
    for number, row in enumerate(by_role(SentenceEmbeddings(), table, columns, predicts=True)):
        anchor, positive, *negatives = texts_of_row(row, number)
        query = queries.setdefault(anchor, f"{len(queries):09d}")
        for text in (positive, *negatives):
            corpus.setdefault(text, f"{len(corpus):09d}")
        relevant.setdefault(query, set()).add(corpus[positive])
    for text in _lines(documents):
        corpus.setdefault(text, f"{len(corpus):09d}")
    return SearchData(_by_id(queries), _by_id(corpus), relevant)


def _by_id(ids: Mapping[str, str]) -> dict[str, str]:
    return {number: text for text, number in ids.items()}


def _lines(path: str) -> list[str]:
    if not path:
        return []
    where = f"--file={path}"
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{where}: no such file.")
    return [line.rstrip("\r\n") for line in read_lines(file, where) if line.strip()]


def _folder(path: Path) -> Path | None:
    folders = [path]
    if path.suffix == ".tsv":
        folders = [path.parent, path.parent.parent]
    for folder in folders:
        if any((folder / name).is_file() for name in CORPUS):
            return folder
    return None


def _one_of(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"{folder}: no {names[0]}; must be {FORMS}.")


def _judgements(path: Path, folder: Path, where: str) -> Table:
    file = path
    if path == folder:
        known = [folder / "qrels" / "test.tsv", folder / "qrels.tsv"]
        others = sorted((folder / "qrels").glob("*.tsv"))
        exist = [one for one in known if one.is_file()]
        if not exist and len(others) == 1:
            exist = others
        if not exist:
            names = ", ".join(f"qrels/{one.name}" for one in others)
            way = f"name one of {names}" if names else f"must be {FORMS}"
            raise ConfigError(f"{where}: has no qrels/test.tsv; {way}.")
        file = exist[0]
    if file != path:
        where = f"{where}: {file.name}"
    table = open_table(str(file), where)
    lacking = [name for name in COLUMNS.values() if name not in table.columns]
    if lacking:
        raise ConfigError(
            f"{table.where}: its first line lacks {', '.join(map(repr, lacking))}; must be"
            " query-id, corpus-id and score, separated by tabs."
        )
    return table


def _texts(path: Path, where: str) -> dict[str, str]:
    table = open_table(str(path), f"{where}: {path.name}")
    texts = {}
    for number, row in enumerate(table.rows):
        if not isinstance(row.get("text"), str) or row.get("_id") is None:
            raise ConfigError(f"{table.where}: row {number + 1} must have _id and text.")
        title = row.get("title")
        text = row["text"]
        if isinstance(title, str) and title:
            text = f"{title} {text}"
        texts[str(row["_id"])] = text.strip()
    return texts


def _score(row: Mapping[str, str], where: str) -> float:
    try:
        return float(row[COLUMNS["score"]])
    except (TypeError, ValueError):
        value = quote_value(row[COLUMNS["score"]])
        raise ConfigError(f"{where}: score={value} is not a number; correct it.") from None

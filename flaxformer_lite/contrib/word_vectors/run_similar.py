"""Neighbors, analogies and scores of a model's word vectors."""

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from flaxformer_lite.cli import command_line, retrieve
from flaxformer_lite.cli.open_model import folder_of, print_notice, print_warnings
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.word_vectors.word_scores import Section, score_analogies, score_pairs
from flaxformer_lite.inference.retrieval import SearchData
from flaxformer_lite.model_details import load_word_vectors
from flaxformer_lite.pretrained.word_vectors import WordVectors


def run(args: argparse.Namespace) -> None:
    """Prints a table for each question."""
    if args.text or args.file is not None:
        _print_texts(args)
        return
    if not (args.word or args.analogy or args.questions or args.pairs):
        raise ConfigError(
            'nothing to look for: pass --word WORD, --analogy "A B C", --questions FILE, --pairs'
            " FILE, or --text TEXT with --file FILE."
        )
    analogies = []
    for text in args.analogy:
        words = tuple(text.split())
        if len(words) != 3:
            raise ConfigError(
                f"--analogy={text!r}: must be three words, such as 'paris france london'."
            )
        analogies.append(words)
    with print_warnings():
        vectors = load_word_vectors(folder_of(args.model), allow_plugins=args.allow_plugins)
        given_words = list(args.word)
        for words in analogies:
            given_words += words
        for word in dict.fromkeys(given_words):
            ids = vectors.ids_of(word)
            if len(ids) > 1:
                tokens = ", ".join(vectors.pieces[i].decode(errors="replace").strip() for i in ids)
                print_notice(
                    f"{word!r} is {len(ids)} tokens ({tokens}); the mean of their vectors is used."
                )
        for word in args.word:
            _print(word, ("cosine",), _cosines(vectors.similar(word, args.top_k)))
        for a, b, c in analogies:
            nearest = _cosines(vectors.analogy(a, b, c, args.top_k))
            _print(f"{a} is to {b} as {c} is to", ("cosine",), nearest)
        if args.questions:
            _print_questions(vectors, Path(args.questions))
        if args.pairs:
            _print_pairs(vectors, Path(args.pairs))


def _print_texts(args: argparse.Namespace) -> None:
    """Prints the lines of a file that are most similar to each text."""
    if args.word or args.analogy or args.questions or args.pairs:
        raise ConfigError(
            "--text: looks for texts, and --word, --analogy, --questions and --pairs for words; run"
            " the command once for each."
        )
    if not args.text or args.file is None:
        raise ConfigError("--text, --file: must be given together.")
    read = command_line.read_text(args.file, f"--file={args.file}")
    lines = [line for line in read.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"--file={args.file}: has no text.")
    queries = {f"{number:09d}": text for number, text in enumerate(args.text)}
    corpus = {f"{number:09d}": text for number, text in enumerate(lines)}
    with print_warnings():
        layers, opened = retrieve.open_sentence_model(args)
        data = SearchData(queries, corpus, {})
        hits = retrieve.nearest(opened, layers, data, args.top_k, retrieve.prompts_of(args))
    for text, scores, rows in zip(args.text, hits.scores_QK, hits.rows_QK, strict=True):
        nearest = [(lines[row], f"{score:.3f}") for row, score in zip(rows, scores, strict=True)]
        _print(text, (layers.similarity,), nearest)


def _print_questions(vectors: WordVectors, path: Path) -> None:
    model = score_analogies(vectors, path)
    chance = score_analogies(random_vectors(vectors), path)
    model = [*model, _total(model)]
    chance = [*chance, _total(chance)]
    rows = []
    for section, random_section in zip(model, chance, strict=True):
        rows.append((section.name, *_score(section), _score(random_section)[0]))
    _print(str(path), ("right", "known", "random vectors"), rows)


def _total(sections: Sequence[Section]) -> Section:
    _, *counts = zip(*sections, strict=True)
    return Section("all", *map(sum, counts))


def _score(section: Section) -> tuple[str, str]:
    right = f"{section.right / section.known:.1%}" if section.known else "-"
    return right, f"{section.known:,} of {section.total:,}"


def _print_pairs(vectors: WordVectors, path: Path) -> None:
    model = score_pairs(vectors, path)
    chance = score_pairs(random_vectors(vectors), path)
    rows: list[tuple[str, ...]] = []
    for name in ("spearman", "pearson"):
        if name in model:
            rows.append((name, f"{model[name]:.3f}", f"{chance[name]:.3f}"))
    rows.append(("known", f"{model['known']} of {model['total']}", ""))
    _print(str(path), ("model", "random vectors"), rows)


def random_vectors(vectors: WordVectors) -> WordVectors:
    """Returns random vectors of the same words and width, which learned ones should surpass."""
    table_VD = np.random.default_rng(0).standard_normal(vectors.table_VD.shape, np.float32)
    return dataclasses.replace(vectors, table_VD=table_VD)


def _cosines(nearest: list[tuple[str, float]]) -> list[tuple[str, str]]:
    return [(word, f"{cosine:.3f}") for word, cosine in nearest]


def _print(title: str, columns: Sequence[str], rows: Iterable[tuple[str, ...]]) -> None:
    print_table([title, *columns], rows, right=range(1, 1 + len(columns)))

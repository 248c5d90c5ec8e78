"""`similar` on word vectors that a run has learned, and on published tables."""

import dataclasses
import random

import pytest

import flaxformer_lite
from flaxformer_lite import load_word_vectors
from flaxformer_lite.__main__ import main
from flaxformer_lite.config import TokenizerConfig
from flaxformer_lite.contrib.word_vectors.models import word2vec
from flaxformer_lite.contrib.word_vectors.objectives.cbow import Cbow
from flaxformer_lite.contrib.word_vectors.objectives.skip_gram import SkipGram
from tests.cli import models
from tests.marks import daily
from tests.objectives.tables import write_rows
from tests.training import tiny_runs

TOPICS = ["king queen throne crown palace prince", "apple pear plum cherry orchard juice"]
TOPICS = [topic.split() for topic in [*TOPICS, "wave harbor sail anchor captain tide"]]
OBJECTIVES = {"skip_gram": SkipGram, "cbow": Cbow}


def config(folder, name):
    """A run on documents that each keep to one of three topics."""
    folder.mkdir(exist_ok=True)
    draw = random.Random(0)
    texts = [" ".join(draw.choices(TOPICS[n % 3], k=40)) for n in range(120)]
    path = write_rows(folder / "topics.jsonl", [{"text": f"The {text}."} for text in texts])
    cfg = tiny_runs.config(
        folder,
        model=word2vec.config("tiny", vocab_size=0, d_model=16),
        objective=OBJECTIVES[name](window=3, draws=16, subsample=0.0),
        train={"steps": 40, "batch_size": 16, "eval_every": 40, "checkpoint_every": 40},
    )
    words = TokenizerConfig(name="words", vocab_size=200, min_count=2)
    data = dataclasses.replace(cfg.data, path=path, tokenizer=words)
    optimizer = dataclasses.replace(cfg.optimizer, learning_rate=3e-2, weight_decay=0.0)
    return dataclasses.replace(cfg, data=data, optimizer=optimizer)


@pytest.fixture(scope="module", params=daily(OBJECTIVES, ("skip_gram",)))
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    flaxformer_lite.run(config(folder, request.param), folder / "run")
    return folder / "run"


def similar(capsys, *args):
    main(["similar", *map(str, args)])
    return capsys.readouterr()


def test_words_of_a_topic_are_near_each_other(run, capsys):
    vectors = load_word_vectors(run)
    assert {*vectors.words} == {"the", *(word for topic in TOPICS for word in topic)}
    for topic in TOPICS:
        for word in topic:
            assert {found for found, _ in vectors.similar(word, 4)} <= {*topic, "the"}, word
    said = similar(capsys, "--model", run, "--word", "KING", "--top_k", 3).out.splitlines()
    assert said[0].split() == ["KING", "cosine"] and len(said) == 4
    expected = [f"{word} {cosine:.3f}" for word, cosine in vectors.similar("king", 3)]
    assert [" ".join(line.split()) for line in said[1:]] == expected


def test_scores_beside_random_vectors(run, capsys, tmp_path):
    questions = tmp_path / "q.txt"
    topics = ": topics\nking queen apple pear\nking queen apple unheard\n: more\n"
    questions.write_text(f"{topics}sail tide plum pear\n")
    pairs = tmp_path / "p.csv"
    pairs.write_text("a,b,score\nking,queen,9\nking,apple,1\nplum,pear,9\nsail,plum,1\n")
    out = similar(capsys, "--model", run, "--questions", questions, "--pairs", pairs).out
    lines = [line.split() for line in out.splitlines()]
    assert lines[1][0] == "topics" and lines[1][2:5] == ["1", "of", "2"]
    assert lines[3][2:5] == ["2", "of", "3"] and lines[-1] == ["known", "4", "of", "4"]
    assert lines[5][0] == "spearman" and float(lines[5][1]) > 0.7


@pytest.mark.nightly
def test_a_run_that_is_stopped_and_continued_ends_the_same(tmp_path):
    cfg = tiny_runs.steps(config(tmp_path, "skip_gram"), 8, eval_every=4, checkpoint_every=4)
    assert tiny_runs.resumes_exactly(cfg, tmp_path)


def test_a_word_of_several_tokens_is_their_mean(tmp_path, capsys):
    folder = models.directory(tmp_path / "gpt2")
    said = similar(capsys, "--model", folder, "--analogy", "one onetwo three", "--top_k", 2)
    notice = "notice: 'onetwo' is 3 tokens (one, t, wo); the mean of their vectors is used."
    assert notice in said.err and "one is to onetwo as three is to" in said.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "nothing to look for: pass --word WORD"),
        (
            ["--analogy", "one two"],
            "'one two': must be three words, such as 'paris france london'.",
        ),
        (["--word", ""], "'': not in the vocabulary."),
        (["--word", "one", "--top_k", "0"], "--top_k"),
        (["--questions", "/no/such/file"], "/no/such/file: cannot be read"),
    ],
)
def test_what_it_refuses(tmp_path, refusal, args, message):
    assert message in refusal("similar", "--model", models.directory(tmp_path / "gpt2"), *args)


def test_a_word_of_no_text_and_directories_without_a_model(run, tmp_path, capsys, refusal):
    told = refusal("similar", "--model", run, "--analogy", "king queen kings")
    assert "'kings': not in the vocabulary; did you mean 'king'?" in told
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_bytes((run / "config.json").read_bytes())
    for folder, message in (
        (tmp_path / "none", "no such directory"),
        (half, "no checkpoint yet"),
        (tmp_path, "no config.json"),
    ):
        with pytest.raises(SystemExit) as stopped:
            similar(capsys, "--model", folder, "--word", "king")
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line and stopped.value.code in (1, 2)

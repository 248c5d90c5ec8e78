"""Good or bad, of 10,605 sentences of film reviews, by a classifier trained from random weights.

Training stops when it no longer improves.

    # the data: 2.5 MB, MIT
    pip download --no-deps --no-binary :all: -d runs/reviews vaderSentiment==2.5
    # writes train.csv, dev.csv and test.csv
    python examples/movie_reviews.py write runs/reviews/vaderSentiment-2.5.tar.gz runs/reviews
    flaxformer_lite train --config=classify --workdir=runs/reviews/run --config.data.length=64 \
        --config.data.path=runs/reviews/train.csv --config.data.eval_path=runs/reviews/dev.csv \
        --config.optimizer.learning_rate=5e-4 --config.optimizer.schedule=constant \
        --config.train.steps=0 --config.train.epochs=20 --config.train.best=accuracy \
        --config.train.patience=5
    flaxformer_lite evaluate --model runs/reviews/run --data runs/reviews/test.csv
    # a baseline: tf-idf and logistic regression
    python examples/movie_reviews.py words runs/reviews

The sentences are from the reviews of Pang and Lee (2004). Twenty people rated each from -4 to 4 for
Hutto and Gilbert (2014), "VADER: A Parsimonious Rule-based Model for Sentiment Analysis"; a mean
above 0 is good here.
"""

import csv
import io
import random
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

SPLITS = {"test": slice(0, 1500), "dev": slice(1500, 3000), "train": slice(3000, None)}
INSIDE = "hutto_ICWSM_2014.tar.gz"
RATED = "movieReviewSnippets_GroundTruth.txt"


def reviews(archive: Path) -> Iterator[dict[str, str]]:
    """Yields the rated sentences in the nested archive of vaderSentiment's source distribution."""
    with tarfile.open(archive) as outer, tarfile.open(fileobj=_file(outer, INSIDE)) as inner:
        for line in io.TextIOWrapper(_file(inner, RATED), encoding="utf-8"):
            _, rating, text = line.rstrip("\r\n").split("\t", 2)
            yield {"text": text, "label": "good" if float(rating) > 0 else "bad"}


def _file(archive: tarfile.TarFile, name: str) -> io.BufferedReader:
    return archive.extractfile(next(member for member in archive if Path(member.name).name == name))


def write(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(reviews(archive))
    random.Random(0).shuffle(rows)
    for name, part in SPLITS.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["text", "label"])
            writer.writeheader()
            writer.writerows(rows[part])
        print(f"{folder / name}.csv: {len(rows[part]):,} sentences")


def words(folder: Path) -> float:
    """Prints and returns the test accuracy of scikit-learn's logistic regression on tf-idf."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = {}
    labels = {}
    for name in ("train", "test"):
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        texts[name], labels[name] = ([row[column] for row in rows] for column in ("text", "label"))
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(
        texts["train"], labels["train"]
    )
    accuracy = model.score(texts["test"], labels["test"])
    print(f"tf-idf and logistic regression: accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    {"write": write, "words": words}[command](*map(Path, paths))

"""The mails of the fine-tuning example: what is read of a package, and the plot of runs."""

import csv
import io
import json

from examples import spam_mails
from tests.examples.test_movie_reviews import packed
from tests.objectives.tables import write_rows


def test_each_mail_is_a_row_without_headers_and_markup(tmp_path):
    mail = "From: a@b\nSubject: Win now\nX: y\n\n<b>Free</b>  \tmoney\0"
    mails = {f"spam-1/{n:04}": mail for n in range(1200)}
    mails |= {f"easy-ham-2/{n:04}": "To: c\n\nhello" for n in range(400)}
    files = {"../LICENSE": "no mail", **mails}
    files = {f"package/data/{name}.json": json.dumps({"text": x}) for name, x in files.items()}
    archive = tmp_path / "mails.tgz"
    archive.write_bytes(packed({name: text.encode() for name, text in files.items()}))
    spam_mails.write(archive, tmp_path / "out")
    texts = {}
    for name, size in {"train": 100, "dev": 500, "test": 1000}.items():
        part = list(csv.DictReader(io.StringIO((tmp_path / "out" / f"{name}.csv").read_text())))
        assert len(part) == size
        texts |= {row["label"]: row["text"] for row in part}
    assert texts == {"spam": "Win now\n Free money", "ham": "hello"}


def test_seeds_of_a_name_are_one_line(tmp_path):
    for seed in range(2):
        (tmp_path / f"run{seed}").mkdir()
        accuracies = {0: 0.5 + seed / 10, 10: 0.6 + seed / 10}
        lines = [{"step": at, "split": "eval", "accuracy": x} for at, x in accuracies.items()]
        write_rows(tmp_path / f"run{seed}" / "metrics.jsonl", lines)
    spam_mails.plot(tmp_path / "figure.png", [f"ours={tmp_path}/run0", f"ours={tmp_path}/run1"])
    assert (tmp_path / "figure.png").stat().st_size > 10_000

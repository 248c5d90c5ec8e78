"""The mails of the fine-tuning example: what is read of a package, and the plot of runs."""

import csv
import io
import json
import tarfile

from examples import spam_mails


def package(path, mails):
    with tarfile.open(path, "w:gz") as archive:
        for name, text in mails.items():
            content = json.dumps({"text": text}).encode()
            info = tarfile.TarInfo(f"package/data/{name}.json")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_each_mail_is_a_row_without_headers_and_markup(tmp_path):
    mail = "From: a@b\nSubject: Win now\nX: y\n\n<b>Free</b>  \tmoney\0"
    mails = {f"spam-1/{n:04}": mail for n in range(1200)} | {
        f"easy-ham-2/{n:04}": "To: c\n\nhello" for n in range(400)
    }
    spam_mails.write(
        package(tmp_path / "mails.tgz", mails | {"../LICENSE": "no mail"}), tmp_path / "out"
    )
    texts_of = lambda name: io.StringIO((tmp_path / "out" / f"{name}.csv").read_text())  # noqa: E731
    rows = {name: list(csv.DictReader(texts_of(name))) for name in ("train", "dev", "test")}
    assert {name: len(part) for name, part in rows.items()} == {
        "train": 100,
        "dev": 500,
        "test": 1000,
    }
    texts = {row["label"]: row["text"] for part in rows.values() for row in part}
    assert texts == {"spam": "Win now\n Free money", "ham": "hello"}


def test_seeds_of_a_name_are_one_line(tmp_path):
    for seed in range(2):
        (tmp_path / f"run{seed}").mkdir()
        lines = [
            {"step": step, "split": "eval", "accuracy": 0.5 + step / 100 + seed / 10}
            for step in (0, 10)
        ]
        (tmp_path / f"run{seed}" / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
    spam_mails.plot(tmp_path / "figure.png", [f"ours={tmp_path}/run0", f"ours={tmp_path}/run1"])
    assert (tmp_path / "figure.png").stat().st_size > 10_000

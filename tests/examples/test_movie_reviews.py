"""The rated sentences of the early-stopping example: what is read of a distribution, and the
splits."""

import csv
import io
import tarfile

from examples import movie_reviews


def packed(files):
    """A tar.gz as bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_each_sentence_is_a_row_with_the_sign_of_its_rating(tmp_path):
    lines = [f'{n}\t{(n % 7 - 3) / 2}\tfilm, {n}: "na\u00efve"\tand\r\n' for n in range(4000)]
    files = {f"x/{movie_reviews.RATED}": "".join(lines).encode(), "x/other.txt": b"1\t2\tno\r\n"}
    inner = {"package/README": b"no", f"package/extra/{movie_reviews.INSIDE}": packed(files)}
    archive = tmp_path / "package.tar.gz"
    archive.write_bytes(packed(inner))
    movie_reviews.write(archive, tmp_path / "out")
    rows = {}
    for name, size in {"train": 1000, "dev": 1500, "test": 1500}.items():
        text = (tmp_path / f"out/{name}.csv").read_text(encoding="utf-8")
        part = list(csv.DictReader(io.StringIO(text)))
        assert len(part) == size
        rows |= {row["text"]: row["label"] for row in part}
    assert len(rows) == 4000, "no sentence is in two splits"
    for n in (0, 3, 4, 3999):
        assert rows[f'film, {n}: "na\u00efve"\tand'] == ("good" if n % 7 > 3 else "bad")


def test_words_alone_tell_the_sign_where_they_carry_it(tmp_path):
    signs = (("fine", "good"), ("dull", "bad"))
    rows = [f"a {word} film {n},{label}" for n in range(20) for word, label in signs]
    for name, part in {"train": rows[:30], "test": rows[30:]}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *part]))
    assert movie_reviews.words(tmp_path) == 1.0

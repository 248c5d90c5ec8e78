import json

from examples import wordnet_glosses

WORDS = "03 dog 0 domestic_dog 0 Canis_familiaris(a) 0"
LINE = f"02084071 05 n {WORDS} 002 @ 02083346 n 0000 %p 02158846 n 0000 | a {{}} \n"


def test_words_and_gloss_of_each_meaning(tmp_path, capsys):
    for name in wordnet_glosses.FILES:
        (tmp_path / name).write_text("  1 This software\n" + LINE.format(name))
    wordnet_glosses.main(tmp_path, tmp_path / "out.jsonl")
    texts = [json.loads(line)["text"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    meaning = "dog, domestic dog, Canis familiaris: a"
    assert texts == [f"{meaning} {name}" for name in wordnet_glosses.FILES]
    assert "4 glosses" in capsys.readouterr().out

import json

from examples import jupyter_translations


def test_pairs_without_contexts_and_without_what_is_not_translated(tmp_path, capsys):
    entries = {"menu\x04Open": ["Ouvrir"], "Open": ["Ouvre"], "Dask": ["Dask"], "New": [""]}
    entries[""] = {"domain": "x"}
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "a.json").write_text(json.dumps(entries))
    jupyter_translations.main(tmp_path / "pack", tmp_path / "pairs.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert rows == [{"source": "Open", "target": "Ouvre"}] and "1 pairs" in capsys.readouterr().out

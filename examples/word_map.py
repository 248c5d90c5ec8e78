"""Words on a plane: the two directions in which their vectors differ most (PCA), as a picture.

python examples/word_map.py runs/words/skipgram words.png king queen man woman paris france london
england
"""

import sys

import matplotlib
import numpy as np

from flaxformer_lite import WordVectors, load_word_vectors


def plane(vectors: WordVectors, words):
    """Returns the first two principal components of the words' unit vectors, [words, 2]."""
    unit = np.stack([vector / np.linalg.norm(vector) for vector in map(vectors.vector, words)])
    left, sizes, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    return left[:, :2] * sizes[:2]


def main(model, output, *words):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    places = plane(load_word_vectors(model), words)
    figure, axes = pyplot.subplots(figsize=(7, 5), layout="constrained")
    axes.scatter(*places.T, s=12, color="0.6")
    for word, place in zip(words, places, strict=True):
        axes.annotate(word, place, xytext=(4, 3), textcoords="offset points", fontsize=9)
    axes.margins(0.16)  # room for the last words
    axes.set(xlabel="first component", ylabel="second component")
    figure.savefig(output, dpi=110)
    print(f"{output}: {len(words)} words")


if __name__ == "__main__":
    main(*sys.argv[1:])

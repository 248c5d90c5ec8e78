"""A model's token table as vectors of whole words, and what is near to what in it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.nn.functions.nearest import nearest
from flaxformer_lite.nn.functions.pooling import to_unit_length
from flaxformer_lite.registry import did_you_mean as suggestion
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class WordVectors:
    """Vectors of the words that are one token; a word of several tokens has the mean of theirs.

    A word is looked up as it is written, then in lower case, then with a capital. Spellings of a
    word in another case are never among its neighbors.

    Attributes:
      words: the words, by their ids in `ids`.
      ids: int32 [W].
      table_VD: vectors of all tokens, float32.
      encode: a text as ids.
      pieces: the text of each id, empty for special tokens.
    """

    words: tuple[str, ...]
    ids: np.ndarray
    table_VD: np.ndarray
    encode: Callable[[str], list[int]]
    pieces: Sequence[bytes]

    @functools.cached_property
    def number(self) -> dict[str, int]:
        """The number of each word among `words`."""
        return {word: i for i, word in enumerate(self.words)}

    @functools.cached_property
    def spellings(self) -> dict[str, list[int]]:
        """The numbers of all spellings of a word, by `str.casefold`."""
        by_folded: dict[str, list[int]] = {}
        for i, word in enumerate(self.words):
            by_folded.setdefault(word.casefold(), []).append(i)
        return by_folded

    @functools.cached_property
    def unit_WD(self) -> np.ndarray:
        """The vectors of `words`, divided by their lengths."""
        return np.asarray(to_unit_length(jnp.asarray(self.table_VD[self.ids])))

    def find(self, word: str) -> int | None:
        """Returns the number of a word that is one token; None if it is not."""
        for spelled in (word, word.lower(), word.capitalize()):
            if spelled in self.number:
                return self.number[spelled]
        return None

    def ids_of(self, word: str) -> list[int]:
        """Returns the tokens of a word.

        Raises:
          ConfigError: the vocabulary does not know it.
        """
        number = self.find(word)
        if number is not None:
            return [int(self.ids[number])]
        ids = self.encode(f" {word.strip()}") if word.strip() else []
        if not ids or not all(map(self._is_known, ids)):
            near = suggestion(word.lower(), list(self.words)) or "."
            raise ConfigError(f"{word!r}: not in the vocabulary{near}")
        return ids

    def _is_known(self, token: int) -> bool:
        if token >= len(self.table_VD):
            return False
        return bool(self.pieces[token]) and b"<unk>" not in self.pieces[token]

    def vector(self, word: str) -> np.ndarray:
        """Returns the vector of a word, float32 [D]."""
        return self.table_VD[self.ids_of(word)].mean(axis=0)

    def similar(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        """Returns the k words with the largest cosines to a word, with their cosines."""
        return self.near(self.vector(word), k, without=(word,))

    def analogy(self, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
        """Returns the k best words d for "a is to b as c is to d", with their cosines.

        They are nearest to b - a + c, where all vectors have length one.

        Reference: Mikolov, Yih, Zweig 2013, "Linguistic Regularities in Continuous Space Word
          Representations", section 4.
        """
        a_D, b_D, c_D = to_unit_length(jnp.asarray([self.vector(word) for word in (a, b, c)]))
        return self.near(b_D - a_D + c_D, k, without=(a, b, c))

    def near(
        self, vector_D: np.ndarray | jax.Array, k: int, *, without: Sequence[str] = ()
    ) -> list[tuple[str, float]]:
        """Returns the k words with the largest cosines to a vector, with their cosines."""
        left_out = set[int]()
        for word in without:
            left_out |= set(self.spellings.get(word.casefold(), ()))
        most = min(k + len(left_out), len(self.words))
        cosines, numbers = nearest(jnp.asarray(self.unit_WD), jnp.asarray(vector_D), most)
        neighbors = zip(np.asarray(numbers).tolist(), np.asarray(cosines).tolist(), strict=True)
        return [(self.words[i], cosine) for i, cosine in neighbors if i not in left_out][:k]


def token_table(stored: dict, where: str) -> np.ndarray:
    """Reads the token table of a model, float32 [V, D].

    Args:
      stored: the model's parameters; no others are read.
      where: the model, for messages.

    Raises:
      ConfigError: it has none.
    """
    if "embedding" not in stored.get("token_embed", {}):
        raise ConfigError(
            f"{where}: this model has no token table, token_embed/embedding, to take vectors from."
        )
    return np.asarray(stored["token_embed"]["embedding"], np.float32)


def vectors_of(
    table_VD: np.ndarray, tokenizer: PublishedTokenizer, pieces: Sequence[bytes], where: str
) -> WordVectors:
    """Returns the vectors of the words among a model's tokens.

    Args:
      table_VD: the model's token table.
      tokenizer: the model's tokenizer.
      pieces: the text of each id, empty for special tokens.
      where: the model, for messages.

    Raises:
      ConfigError: no token is a whole word.
    """
    words = {}
    for i, piece in enumerate(pieces[: len(table_VD)]):
        word = _word(piece)
        if word:
            words[word] = i
    if not words:
        raise ConfigError(
            f"{where}: no token of its vocabulary is a whole word, so there are none to compare."
        )
    encode = functools.partial(tokenizer.encode, special_tokens=False, allow_special=False)
    return WordVectors(
        tuple(words), np.asarray([*words.values()], np.int32), table_VD, encode, pieces
    )


def _word(piece: bytes) -> str:
    """Returns the word that a token stands for; "" if it is part of one, or no word."""
    if piece[:1] != b" ":
        return ""
    text = piece[1:].decode(errors="replace")
    letters = text.replace("'", "").replace("\u2019", "").replace("-", "")
    if text[:1].isalnum() and letters.isalnum():
        return text
    return ""

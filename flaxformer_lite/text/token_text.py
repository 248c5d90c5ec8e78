"""Converts a token of a published vocabulary to the UTF-8 bytes of its text."""

import re


def byte_level(token: str) -> bytes:
    """Converts a token of GPT-2's byte-level BPE, in which a character stands for a byte."""
    return bytes(BYTE_OF.get(c, ord("?")) for c in token)


def word_piece(token: str) -> bytes:
    """Converts a token of WordPiece, in which ## continues a word."""
    if token.startswith("##"):
        return token[2:].encode()
    return b" " + token.encode()


def meta_space(token: str) -> bytes:
    """Converts a token of SentencePiece, in which U+2581 is a space and <0x0A> a byte."""
    if re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Returns the byte of each character that stands for one in GPT-2's vocabulary.

    Printable Latin-1 characters stand for themselves; the other bytes are U+0100 and following.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    for number, byte in enumerate(others, start=256):
        alphabet[chr(number)] = byte
    return alphabet


BYTE_OF = _byte_alphabet()

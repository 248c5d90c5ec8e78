"""The text that a token of a published vocabulary stands for."""

import re


def byte_level(token: str) -> bytes:
    return bytes(BYTE_OF.get(c, 63) for c in token)


def word_piece(token: str) -> bytes:
    return token[2:].encode() if token.startswith("##") else b" " + token.encode()


def meta_space(token: str) -> bytes:
    if re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's printable characters for bytes.

    Printable Latin-1 is kept, the others are numbered from U+0100.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    for number, byte in enumerate(others, start=256):
        alphabet[chr(number)] = byte
    return alphabet


BYTE_OF = _byte_alphabet()

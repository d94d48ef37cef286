"""Text files of other programs: UTF-8 with a mark before it, or not UTF-8 at all."""

from __future__ import annotations

import codecs
from typing import Final

MARK: Final = codecs.BOM_UTF8
"""The mark that programs of Windows put before UTF-8; Python's `utf-8-sig` leaves it out."""

NOT_UTF8: Final = "is UTF-16 or UTF-32: write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
"""What is wrong with a file that `is_wide`, and the cure."""

_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)


def is_wide(start: bytes) -> bool:
    """Tell whether a text that starts so has 16 or 32 bits a character."""
    # Without a mark every other byte of the first letters is 0, or three of four are.
    return start.startswith(_MARKS) or start[:4].count(0) in {2, 3}


_BINARY: Final = {
    b"PAR1": "a Parquet file: let its name end in .parquet",
    b"Obj\x01": "an Avro file: let its name end in .avro",
    b"PK\x03\x04": "a zip archive: unpack it before (unzip)",
    b"\x1f\x8b": "packed by gzip: let its name end in .gz, or unpack it before (gzip -dc)",
    b"BZh": "packed by bzip2: unpack it before (bzip2 -dc)",
    b"\xfd7zXZ\x00": "packed by xz: unpack it before (xz -dc)",
    b"\x04\x22\x4d\x18": "packed by lz4: unpack it before (lz4 -dc)",
    b"\xff\x06\x00\x00sNaPpY": "packed by Snappy: unpack it before (snzip -dc)",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it before (7z x)",
    b"ORC": "an ORC file: write its rows as JSON lines (orc-contents a.orc > a.jsonl)",
    b"\x28\xb5\x2f\xfd": "packed by zstd: let its name end in .zst, or unpack it before (zstd -dc)",
}


def binary_kind(start: bytes) -> str | None:
    """Say what a file is that has no lines of text, and the cure; None for any other."""
    return next((said for magic, said in _BINARY.items() if start.startswith(magic)), None)

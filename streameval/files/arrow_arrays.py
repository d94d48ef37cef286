"""Arrays of Arrow: their numbers as numpy has them, and what holds texts.

Arrow's own ways to numpy and back import pandas where that is installed, which takes a fifth of a
second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(column: Any) -> npt.NDArray[Any]:
    """Return the numbers of an array of Arrow without nulls, whole or in chunks."""
    return np.from_dlpack(column.combine_chunks() if hasattr(column, "chunks") else column)


def is_text(kind: Any) -> bool:
    """Tell whether a type is that of texts, as such or as a dictionary."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def column(values: npt.NDArray[Any]) -> Any:
    """Return numbers as an array of Arrow."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)

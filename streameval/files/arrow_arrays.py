"""Numbers between Arrow and numpy, in place.

Arrow's own ways import pandas where that is installed, which takes a fifth of a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(column: Any) -> npt.NDArray[Any]:
    """Return the numbers of an array of Arrow without nulls, whole or in chunks."""
    return np.from_dlpack(column.combine_chunks() if hasattr(column, "chunks") else column)


def column(values: npt.NDArray[Any]) -> Any:
    """Return numbers as an array of Arrow."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)

"""The evaluation: the frame with a client's losses and confusion counts."""

import math
import struct
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import FrameError
from samara.shared.protocol.wire import Kind, Reader, encode_text, pack, unpack

MAX_LABELS = 1024
MAX_COLUMNS = 64


@dataclass(frozen=True, eq=False)
class EvaluationColumn:
    """The loss and confusion counts of one model on a client's examples.

    Attributes:
        name: name of the column: global, zero-shot, personalized and so on.
        mean_loss: mean over the examples; 0 if the client has none.
        counts: confusion matrix, int64 [labels, labels]; rows are true labels, columns predictions.
        ordered: twice the Mann-Whitney statistic, for a simulated client with two labels. A pair of
            examples with different labels counts 2 if its scores are in the right order, and 1 if
            they are tied. None if not sent.
    """

    name: str
    mean_loss: float
    counts: NDArray[np.int64]
    ordered: int | None = None

    @property
    def auc(self) -> float | None:
        """The area under the ROC curve; None without `ordered`, or if a label has no example."""
        pairs = math.prod(self.counts.sum(axis=1).tolist())
        return None if self.ordered is None or not pairs else self.ordered / (2 * pairs)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A client's answer to an evaluate instruction.

    Attributes:
        token: token of the answered instruction, 8 bytes.
        client: client index.
        columns: one column per evaluated model; all have distinct names and the same labels.
    """

    token: bytes
    client: int
    columns: tuple[EvaluationColumn, ...]

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sIHH")
    _LOSS: ClassVar[struct.Struct] = struct.Struct("<d")
    _ORDERED: ClassVar[struct.Struct] = struct.Struct("<Q")

    def encode(self) -> bytes:
        """Encode the evaluation as a frame."""
        labels = len(self.columns[0].counts)
        parts = [self._FIELDS.pack(self.token, self.client, labels, len(self.columns))]
        for column in self.columns:
            parts += [encode_text(column.name), self._LOSS.pack(column.mean_loss)]
            parts.append(column.counts.astype("<u4").tobytes())
        ordered = [column.ordered for column in self.columns if column.ordered is not None]
        if len(ordered) == len(self.columns):
            parts += map(self._ORDERED.pack, ordered)
        return pack(Kind.EVALUATION, b"".join(parts))

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode an evaluation from a frame.

        Raises:
            FrameError: if the frame is not a valid evaluation.
        """
        reader = Reader(unpack(frame, Kind.EVALUATION))
        token, client, labels, count = reader.fields(cls._FIELDS)
        if not (1 <= labels <= MAX_LABELS and 1 <= count <= MAX_COLUMNS):
            raise FrameError(f"the evaluation of client {client} is out of range")
        columns = []
        for _ in range(count):
            name = reader.text()
            (mean_loss,) = reader.fields(cls._LOSS)
            counts = reader.array("<u4", labels * labels).astype(np.int64)
            columns.append(EvaluationColumn(name, mean_loss, counts.reshape(labels, labels)))
        if labels == 2 and reader.left:
            for index, column in enumerate(columns):
                (ordered,) = reader.fields(cls._ORDERED)
                if ordered > 2 * math.prod(column.counts.sum(axis=1).tolist()):
                    raise FrameError(
                        f"the evaluation of client {client} counts more ordered pairs of examples "
                        "than exist"
                    )
                columns[index] = replace(column, ordered=ordered)
        reader.end()
        if not all(np.isfinite(column.mean_loss) for column in columns):
            raise FrameError(f"a loss in the evaluation of client {client} is not finite")
        if len({column.name for column in columns}) < count:
            raise FrameError(f"the evaluation of client {client} names a column twice")
        return cls(token, client, tuple(columns))

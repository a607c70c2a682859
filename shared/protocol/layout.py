"""The layout: names and shapes of the trained tensors, and the recipe for the frozen weights."""

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from samara.shared.errors import LayoutError, SamaraError
from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.normal_table import TABLE_SHA256

FORMAT_VERSION = 1
ADAPTER_GROUP = "adapter"
LABEL_BIAS_GROUP = "label bias"
READOUT_GROUP = "readout"
RANDOM_TOKENS = "random-tokens"
MAX_RANK = 1024
MAX_ELEMENTS = 2**30
"""Largest number of trained numbers; a larger layout from the network is refused."""
MAX_BASIS_SIZE = 1024
"""Largest number of vectors of a basis."""
_SHA256 = re.compile("[0-9a-f]{64}")
BASIS_PART = "basis"
"""Name of the part of a state that holds the coordinates in a basis."""


@dataclass(frozen=True)
class Tensor:
    """One trained tensor.

    It is a LoRA-FA matrix B [out, rank], the readout [labels − 1, features], or the label bias
    [labels, 1].
    """

    name: str
    rows: int
    columns: int
    group: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.rows * self.columns


@dataclass(frozen=True)
class BasisReference:
    """The basis of an adapter's tensors, B = U·θ (`samara.shared.protocol.basis`).

    Attributes:
        sha256: SHA-256 (hex) of the basis's file.
        size: number of basis vectors, k.
    """

    sha256: str
    size: int


@dataclass(frozen=True)
class StatePart:
    """A part of a state: one tensor, or the coordinates of all adapter tensors in a basis.

    Attributes:
        name: name of the tensor, or `BASIS_PART`.
        group: group of the tensors in this part.
        numbers: slice of the state.
    """

    name: str
    group: str
    numbers: slice


@dataclass(frozen=True)
class DampingRecipe:
    """The source of a readout's damping; it must be the same for all clients.

    A damping from random tokens is identified by its recipe and not by a hash of its numbers,
    because devices may compute different last bits. Such differences affect only the scalars.

    Attributes:
        source: `none`, `random-tokens` or `file`.
        count: number of random-token texts.
        seed: seed of these texts.
        version: version of the code that computes a damping from texts.
        sha256: hash of the file, in hexadecimal.
    """

    source: Literal["none", "random-tokens", "file"] = "none"
    count: int = 0
    seed: int = 0
    version: int = 0
    sha256: str = ""

    def to_json(self) -> dict[str, str | int]:
        """Return the fields that the source uses, by key."""
        read_by = {"random-tokens": ("count", "seed", "version"), "file": ("sha256",)}
        return {key: getattr(self, key) for key in ("source", *read_by.get(self.source, ()))}


@dataclass(frozen=True)
class Layout:
    """The ordered tensors of an adapter, and the recipe for its frozen weights.

    If two layouts have equal hashes, the same scalars mean the same update. Without a basis a state
    holds the elements of the tensors. With a basis, k coordinates at its beginning replace the
    elements of the adapter's tensors. A direction has as many numbers as a state.

    Attributes:
        tensors: trained tensors in flattening order.
        rank: rank r of LoRA-FA.
        alpha: factor α; the product B·A·x is multiplied by α / r.
        a_seed: seed of the frozen matrices A.
        distribution: distribution of the directions.
        basis: basis of the tensors of the group `ADAPTER_GROUP`; None if there is none.
        damping: origin of the readout's damping; None without a readout.
        start: SHA-256 (hex) of the file of the adapter's start (`samara.shared.protocol.start`);
            empty without a start.
    """

    tensors: tuple[Tensor, ...]
    rank: int
    alpha: float
    a_seed: int
    distribution: Distribution
    basis: BasisReference | None = None
    damping: DampingRecipe | None = None
    start: str = ""

    @cached_property
    def size(self) -> int:
        """The number of trained numbers, which is the length of a state and of a direction."""
        return self.parts[-1].numbers.stop if self.parts else 0

    @cached_property
    def element_count(self) -> int:
        """The number of elements of all tensors, d; equal to `size` unless there is a basis."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def adapter_element_count(self) -> int:
        """Number of elements of the tensors that a basis covers."""
        return sum(tensor.size for tensor in self.tensors if tensor.group == ADAPTER_GROUP)

    @cached_property
    def parts(self) -> tuple[StatePart, ...]:
        """The parts of a state, in order."""
        parts = []
        start = 0
        if self.basis:
            start = self.basis.size
            parts.append(StatePart(BASIS_PART, ADAPTER_GROUP, slice(0, start)))
        for tensor in self.tensors:
            if self.basis is None or tensor.group != ADAPTER_GROUP:
                numbers = slice(start, start + tensor.size)
                parts.append(StatePart(tensor.name, tensor.group, numbers))
                start = numbers.stop
        return tuple(parts)

    @cached_property
    def label_bias(self) -> slice | None:
        """The slice of a state that holds the label bias; None without one."""
        return next((p.numbers for p in self.parts if p.group == LABEL_BIAS_GROUP), None)

    @cached_property
    def adapter_hash(self) -> bytes:
        """SHA-256 of the description of the adapter's tensors and frozen matrices, 32 bytes.

        Layouts with the same value can use the same basis.
        """
        tensors = tuple(tensor for tensor in self.tensors if tensor.group == ADAPTER_GROUP)
        return replace(self, tensors=tensors, damping=None).weights_hash

    @cached_property
    def weights_hash(self) -> bytes:
        """SHA-256 of `weights_layout`, 32 bytes.

        Adapters can exchange weights if they have the same hash.
        """
        return self.weights_layout.hash

    @cached_property
    def weights_layout(self) -> "Layout":
        """The layout without the values that do not change the meaning of the tensors' elements."""
        return replace(self, distribution="gaussian", basis=None, start="")

    def tensor_slice(self, name: str) -> tuple[slice, int]:
        """Return the slice of the flat elements that holds a tensor, and its number of rows."""
        return self._slices[name]

    def has(self, name: str) -> bool:
        """Return whether a tensor of this name is trained."""
        return name in self._slices

    def group(self, name: str) -> tuple[Tensor, ...]:
        """Return the tensors of a group."""
        return tuple(tensor for tensor in self.tensors if tensor.group == name)

    @cached_property
    def _slices(self) -> dict[str, tuple[slice, int]]:
        slices = {}
        start = 0
        for tensor in self.tensors:
            slices[tensor.name] = (slice(start, start + tensor.size), tensor.rows)
            start += tensor.size
        return slices

    def to_json(self) -> str:
        """Return canonical JSON: sorted keys, no spaces; equal layouts give equal text."""
        content: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "tensors": [
                {"name": t.name, "rows": t.rows, "columns": t.columns, "group": t.group}
                for t in self.tensors
            ],
            "rank": self.rank,
            "alpha": self.alpha,
            "a_seed": self.a_seed,
            "a_scale": "1/sqrt(in_features)",
            "distribution": self.distribution,
            "normal_table_sha256": TABLE_SHA256,
        }
        if self.basis:
            content["basis"] = {"sha256": self.basis.sha256, "size": self.basis.size}
        if self.damping is not None:
            content["damping"] = self.damping.to_json()
        if self.start:
            content["start"] = self.start
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @cached_property
    def hash(self) -> bytes:
        """The SHA-256 of the canonical JSON, 32 bytes."""
        return hashlib.sha256(self.to_json().encode()).digest()

    def check_hash(self, layout_hash: bytes, remedy: str) -> None:
        """Check that an instruction has the hash of this layout.

        Args:
            layout_hash: 32 bytes, from the instruction.
            remedy: remedy with which the error's message ends.

        Raises:
            LayoutError: if the hashes differ.
        """
        if layout_hash != self.hash:
            raise LayoutError(
                f"the instruction is for layout {layout_hash.hex()[:12]} and this client has "
                f"{self.hash.hex()[:12]}; {remedy}",
                (int.from_bytes(self.hash[:4]), int.from_bytes(layout_hash[:4])),
            )

    @classmethod
    def from_json(cls, text: str) -> "Layout":
        """Read a layout written by `to_json`.

        Raises:
            SamaraError: if the text is not a layout, or has another format version.
        """
        try:
            content: dict[str, Any] = json.loads(text)
            layout = cls(
                tensors=tuple(
                    Tensor(str(t["name"]), int(t["rows"]), int(t["columns"]), str(t["group"]))
                    for t in content["tensors"]
                ),
                rank=int(content["rank"]),
                alpha=float(content["alpha"]),
                a_seed=int(content["a_seed"]),
                distribution=content["distribution"],
                basis=_read_reference(content.get("basis")),
                damping=DampingRecipe(**content["damping"]) if "damping" in content else None,
                start=str(content.get("start", "")),
            )
            faithful = json.loads(layout.to_json()) == content
        except KeyError as error:
            raise SamaraError(
                f"not a layout: the field {error} is missing; use the Samara version that wrote it"
            ) from error
        except (
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise SamaraError(
                f"not a layout: {error!r}; use the content of a layout.json"
            ) from error
        if not faithful or not layout.tensors or any(t.size < 1 for t in layout.tensors):
            raise SamaraError(
                "the layout is of another format version or normal table; "
                "use the Samara version that wrote it"
            )
        if layout.distribution not in get_args(Distribution):
            raise SamaraError(f"the layout names an unknown distribution {layout.distribution!r}")
        if not (
            1 <= layout.rank <= MAX_RANK
            and 0 < layout.alpha < math.inf
            and 0 <= layout.a_seed < 2**64
            and layout.element_count <= MAX_ELEMENTS
            and len({tensor.name for tensor in layout.tensors}) == len(layout.tensors)
        ):
            raise SamaraError("the layout holds a number out of its range or a name twice")
        layout._check_basis()
        if layout.start and not _SHA256.fullmatch(layout.start):
            raise SamaraError("the start in the layout is not a SHA-256")
        return layout

    def _check_basis(self) -> None:
        """Check that the named basis is possible for this layout."""
        if self.basis is None:
            return
        groups = [tensor.group for tensor in self.tensors]
        adapters = groups.count(ADAPTER_GROUP)
        if (
            groups[:adapters] != [ADAPTER_GROUP] * adapters
            or not 1 <= self.basis.size <= min(MAX_BASIS_SIZE, self.adapter_element_count)
            or not _SHA256.fullmatch(self.basis.sha256)
        ):
            raise SamaraError("the basis in the layout does not fit the layout's tensors")


def _read_reference(content: dict[str, Any] | None) -> BasisReference | None:
    """Return the basis named in a layout's JSON, or None."""
    if content is None:
        return None
    return BasisReference(str(content["sha256"]), int(content["size"]))

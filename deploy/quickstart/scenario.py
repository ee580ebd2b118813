"""The scenario: a run, its samples, and the experts that the engines chose.

All processes are forked from the one that creates it, so the ids that a rank expects did not pass through the server.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from routing_replay import Geometry

WORKERS = 4
TP, CP, PP = 2, 2, 2  # Tensor, context and pipeline parallel ranks of the trainer.
MICRO_BATCH_TOKENS = 8192
# Forms of an engine's output. "RAW int32" is an array, the others are encoded bytes.
FORMS = ("RAW int32", "NPY", "BASE64 int32", "BASE64_NPY")
SEED = 20251110
LOST_ROWS = 5


@dataclass(frozen=True)
class Sample:
    """A prompt with its answer of T tokens, so T - 1 rows: the last token was never fed to the model."""

    id: str
    form: str
    tokens: NDArray[np.uint32]
    ids: NDArray[np.uint16]  # [T - 1, layers, K], the engine's choice, including the rows that are lost afterwards.
    turns: tuple[tuple[int, int], ...]  # One half-open range of rows for each conversation turn: one append each.
    lost: tuple[int, int]  # Rows that the engine does not deliver.

    def recorded(self) -> NDArray[np.bool_]:
        rows = np.arange(len(self.ids))
        return (rows < self.lost[0]) | (rows >= self.lost[1])

    def lost_in(self, begin: int, end: int) -> list[tuple[int, int]]:
        both = max(self.lost[0], begin), min(self.lost[1], end)
        return [both] if both[0] < both[1] else []

    def delivered(self, begin: int, end: int) -> NDArray[np.uint16]:
        """The rows of [begin, end) that the engine did not lose."""
        return self.ids[begin:end][self.recorded()[begin:end]]


@dataclass(frozen=True)
class Play:
    """One run: the samples of one model."""

    run: str
    geometry: Geometry
    samples: list[Sample]

    def micro_batches(self) -> list[list[Sample]]:
        """Packs the samples, in order, into batches of at most MICRO_BATCH_TOKENS tokens. A longer sample is a batch of
        its own."""
        batches: list[list[Sample]] = [[]]
        for sample in self.samples:
            tokens = sum(len(each.tokens) for each in (*batches[-1], sample))
            if batches[-1] and tokens > MICRO_BATCH_TOKENS:
                batches.append([])
            batches[-1].append(sample)
        return batches


def _sample(index: int, ids: NDArray[np.uint16]) -> Sample:
    """Sample `index`. FORMS alternate; odd samples have two turns; every eighth sample lacks rows in its middle."""
    rows = len(ids)
    first = rows * 3 // 5
    return Sample(
        id=f"step-1/{index}",
        form=FORMS[index % len(FORMS)],
        tokens=np.random.default_rng([SEED, index]).integers(0, 150_000, rows + 1, np.uint32),
        ids=ids,
        turns=((0, first), (first, rows)) if index % 2 and first else ((0, rows),),
        lost=(rows // 2, rows // 2 + LOST_ROWS) if index % 8 == 3 and rows > 4 * LOST_ROWS else (0, 0),
    )


def synthetic() -> Play:
    """32 samples of the shape of Qwen3-30B-A3B."""
    layers, experts, top_k = 48, 128, 8
    random = np.random.default_rng(SEED)
    samples = []
    for index, length in enumerate(np.clip(random.lognormal(np.log(1400), 0.5, 32), 200, 4096).astype(int)):
        # Picks K different experts per row: a random start, then equal steps of an odd width, which cannot repeat
        # modulo 128.
        start, width = random.integers(0, experts, (2, length - 1, layers, 1))
        ids = (start + (2 * width + 1) * np.arange(top_k)) % experts
        samples.append(_sample(index, ids.astype(np.uint16)))
    geometry = Geometry(num_layers=layers, num_experts=experts, top_k=top_k)
    return Play("quickstart", geometry, samples)

"""What the paper itself reports, as data: its two tables and the numbers that only its text states.

Its models were trained by its authors, on an RTX 4090; ours are trained again. So counts beside each other say how the
methods do on benchmarks made by one recipe, not on the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from zonogpt_apps.bench.grid import IMAGES, MNIST, N_CLASSES, RADII, SST, ModelId

DEVICE = "RTX 4090"
INSTANCES = len(RADII) * IMAGES * (N_CLASSES[MNIST] - 1)  # per model and method: 180; SST has as many, 5 x 18 x 2
METHODS = ("ibp", "covenn", "M", "D", "F", "A")
OUT_OF_MEMORY = ("deepz", "crown")  # on every model; crown is the paper's alpha-beta-CROWN
BEST = "A"


@dataclass(frozen=True)
class Group:
    """A line of the paper's first table."""

    task: str
    size: str
    blocks: tuple[int, ...]
    width: int
    heads: int
    parameters: str
    instances: int


GROUPS = (
    Group(MNIST, "small", (2, 4, 8, 12), 768, 12, "14.2M - 85.1M", 720),
    Group(MNIST, "medium", (2, 4, 8, 24), 1024, 16, "25.3M - 302.4M", 720),
    Group(SST, "small", (2, 4, 8, 12), 768, 12, "52.8M - 123.7M", 720),
    Group(SST, "medium", (2, 4, 8, 24), 1024, 16, "76.7M - 353.8M", 720),
)


@dataclass(frozen=True)
class Solved:
    """How many of 180 instances, or of all 2,880 in a total, were solved, and in what time."""

    solved: int
    seconds: float


# The second table: solved and seconds of each of METHODS.
_LINES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("mnist-small-2", (0, 3.6, 0, 5769.8, 36, 215.3, 36, 826.2, 108, 544.5, 144, 1507.2)),
    ("mnist-small-4", (0, 6.5, 0, 11256.8, 0, 464.1, 0, 1423.8, 108, 2463.5, 108, 4327.8)),
    ("mnist-small-8", (0, 12.2, 0, 22244.4, 0, 824.2, 0, 2942.5, 63, 5609.2, 90, 10621.9)),
    ("mnist-small-12", (0, 18.3, 0, 33440.1, 0, 1232.9, 0, 4435.2, 54, 6688.8, 72, 15862.0)),
    ("mnist-medium-2", (0, 3.6, 0, 10472.1, 36, 291.9, 36, 729.3, 108, 788.3, 126, 1463.0)),
    ("mnist-medium-4", (0, 7.0, 0, 20718.1, 0, 592.3, 0, 1506.0, 99, 2531.2, 108, 3783.4)),
    ("mnist-medium-8", (0, 13.2, 0, 41476.1, 0, 876.4, 0, 3048.2, 54, 4800.8, 81, 8493.9)),
    ("mnist-medium-24", (0, 39.2, 0, 71257.8, 0, 2612.2, 0, 9595.7, 9, 5105.6, 9, 28909.9)),
    ("sst-small-2", (0, 50.2, 0, 8122.4, 24, 112.5, 50, 581.9, 87, 790.2, 94, 1962.7)),
    ("sst-small-4", (0, 77.6, 0, 28785.1, 0, 343.9, 0, 1307.2, 67, 3815.7, 81, 5260.0)),
    ("sst-small-8", (0, 61.1, 0, 28194.8, 0, 649.3, 1, 2626.8, 46, 7849.6, 61, 11036.0)),
    ("sst-small-12", (0, 68.5, 0, 41694.3, 0, 1022.4, 0, 3992.4, 72, 12677.0, 84, 17096.6)),
    ("sst-medium-2", (0, 66.5, 0, 15233.8, 42, 143.5, 66, 729.9, 91, 1027.2, 108, 2105.2)),
    ("sst-medium-4", (0, 70.3, 0, 27953.7, 0, 259.7, 10, 1548.2, 74, 3018.8, 80, 4919.5)),
    ("sst-medium-8", (0, 78.8, 0, 53430.5, 1, 510.1, 2, 2955.6, 56, 6984.3, 68, 10102.5)),
    ("sst-medium-24", (0, 112.2, 0, 149360.1, 0, 1507.0, 0, 8472.1, 24, 18784.8, 25, 29873.8)),
)

RESULTS = {
    (ModelId.parse(name), method): Solved(int(numbers[2 * k]), numbers[2 * k + 1])
    for name, numbers in _LINES
    for k, method in enumerate(METHODS)
}

# As printed under the second table.
TOTALS = {
    "ibp": Solved(0, 688.8),
    "covenn": Solved(0, 569409.8),
    "M": Solved(139, 11657.6),
    "D": Solved(201, 46720.8),
    "F": Solved(1120, 83479.4),
    "A": Solved(1339, 157325.4),
}

# Solved of 576 per radius. The text gives these; the others are only in a figure whose data is not printed.
SOLVED_AT = {
    ("A", 1e-4): 305,
    ("A", 5e-4): 68,
    ("F", 1e-4): 228,
    ("F", 5e-4): 9,
    ("D", 1e-5): 146,
    ("M", 1e-5): 125,
}

# Per instance, as the text says it.
TYPICAL_SECONDS = {"ibp": "under 1", "covenn": "over 150", "M": "3", "D": "11", "F": "21", "A": "38"}

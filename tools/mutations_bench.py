"""Mutations of the benchmark: what it does, file, old text, new text, the tests that must notice."""

from __future__ import annotations

INTERVALS, SST, RECORD = "bench/training/intervals.py", "bench/training/sst.py", "bench/training/record.py"
MAKE, INSTANCES, WORK, RUN, STORE = (
    "bench/make.py",
    "bench/instances.py",
    "bench/work.py",
    "bench/run.py",
    "rows/store.py",
)
LOAD, TABLES = "bench/report/load.py", "bench/report/tables.py"
TRAINING, RUNS, REPORT = ("test_bench_training.py",), ("test_bench_run.py",), ("test_bench_report.py",)

BENCH: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    (
        "product of radii forgotten",
        INTERVALS,
        "self.radius @ (y.abs() + other.radius)",
        "self.radius @ y.abs()",
        TRAINING,
    ),
    ("second factor's radius forgotten", INTERVALS, " + x.abs() @ other.radius", "", TRAINING),
    (
        "dense without absolute values",
        INTERVALS,
        "self.radius @ weight.abs()",
        "(self.radius @ weight).abs()",
        TRAINING,
    ),
    ("skip's radius forgotten", INTERVALS, "self.radius + other.radius)", "other.radius)", TRAINING),
    ("mean's radius forgotten", INTERVALS, "r = x.radius + x.radius.mean(-1, keepdim=True)", "r = x.radius", TRAINING),
    ("variance does not move", INTERVALS, " + z.abs() * rise", "", TRAINING),
    ("variance rises for nothing", INTERVALS, ", moved / (root * most * (root + most)))", ", 0 * moved)", TRAINING),
    (
        "weights of far keys",
        INTERVALS,
        "moved.masked_fill((exponent > MOST_EXPONENT) & ~hidden, 1.0)",
        "moved",
        TRAINING,
    ),
    ("LayerNorm's cap without its centre", INTERVALS, "centre.abs() + (d - 1) ** 0.5", "(d - 1) ** 0.5 / 4", TRAINING),
    (
        "softmax: other scores stay",
        INTERVALS,
        "exponent = radius + radius.amax(-1, keepdim=True)",
        "exponent = radius",
        TRAINING,
    ),
    ("GELU's slope halved", INTERVALS, "GELU_SLOPE = 1.13", "GELU_SLOPE = 0.5", TRAINING),
    ("head's radius forgotten", INTERVALS, "- outputs - lost", "- outputs", TRAINING),
    ("radius follows nothing", SST, "(UP if interval <= plain + SLACK else DOWN)", "UP", TRAINING),
    (
        "record of other weights believed",
        RECORD,
        "if weights_hash(folder) != record.weights_sha256:",
        "if False:",
        TRAINING,
    ),
    ("floor of classes forgotten", RECORD, "if worst < each else", "if worst < 0 else", TRAINING),
    ("wrong answers chosen", MAKE, "if bool(output[candidate.label] > others.max()):", "if True:", RUNS),
    ("classes not balanced", MAKE, "if balanced else count", "if False else count", RUNS),
    ("other input believed", INSTANCES, "if input_hash(raw) != instance.input_hash:", "if False:", RUNS),
    ("other weights believed", WORK, "if {before, weights_hash(folder)} != wanted:", "if False:", RUNS),
    ("weights looked at once", WORK, "if {before, weights_hash(folder)} != wanted:", "if {before} != wanted:", RUNS),
    ("configuration not looked at", "bench/grid.py", "if found != wanted:", "if False:", RUNS),
    (
        "other positions believed by the report",
        LOAD,
        "if (list(said) if isinstance(said, tuple) else said) != getattr(row, name):",
        "if name == 'claim' and said != row.claim:",
        REPORT,
    ),
    ("other settings believed by the report", LOAD, "if row.settings != first.settings:", "if False:", REPORT),
    (
        "proofs without margin believed by the report",
        LOAD,
        '(row.status == "verified" and not row.margin > 0)',
        "False",
        REPORT,
    ),
    ("two trainings in one report", LOAD, "if other.model_hash != row.model_hash:", "if False:", REPORT),
    ("rows counted twice", LOAD, "if place in first:", "if False:", REPORT),
    ("margin of another rival", WORK, "rivals(spec).index(instance.rival)", "0", RUNS),
    ("claim of another rival", WORK, "rows[0, rivals(spec)[at]] = -1.0", "rows[0, rivals(spec)[0]] = -1.0", RUNS),
    (
        "every claim proved by one",
        WORK,
        "float(result.margins[at]) > 0 and",
        "float(result.margins.max()) > 0 and",
        RUNS,
    ),
    ("distrust forgotten", WORK, "> 0 and not distrusted", "> 0", RUNS),
    ("done work done again", WORK, "if self.key(method, instance) not in done:", "if True:", RUNS),
    (
        "key without the method",
        WORK,
        "digest([self.settings.digest, method, instance.hash])",
        "digest([self.settings.digest, instance.hash])",
        RUNS,
    ),
    (
        "set without its positions",
        INSTANCES,
        "self.input_hash, self.positions, self.radius.hex()",
        "self.input_hash, self.radius.hex()",
        RUNS,
    ),
    (
        "set without its radius",
        INSTANCES,
        "self.positions, self.radius.hex(), self.label",
        "self.positions, self.label",
        RUNS,
    ),
    ("two writers of one file", STORE, "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB", RUNS),
]

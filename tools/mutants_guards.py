"""Which tests guard which file of the mathematics, and of what turns it into verdicts; the quickest to notice first."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"

CHECKER = ("test_check_ball.py", "test_certificate_terms.py", "test_certificate_choices.py", "test_certificates.py")
STEPS = ("test_ellipsoidal_steps.py", "test_ellipsoidal_rounding.py", "test_cancellation.py", "test_amplifier.py",
         "test_terms.py")  # fmt: skip
WHOLE_E = ("test_prefixes.py", "test_method_e.py", "test_staircases.py")
OPERATORS = ("test_operators.py", "test_functions.py", "test_methods.py", "test_terms.py")
PAPER = ("test_terms.py", "test_cancellation.py", "test_staircases.py", "test_execution.py", "test_amplifier.py",
         "test_methods.py")  # fmt: skip

# Of a folder or a file below src/; the longest that fits counts.
TESTS = {
    "zonogpt/domains": ("test_domain.py", "test_methods.py"),
    "zonogpt/domains/ellipsoidal": ("test_ellipsoidal_domain.py", "test_ellipsoidal_rounding.py", *STEPS[:1]),
    "zonogpt/domains/symbols": ("test_ellipsoidal_domain.py", "test_ellipsoidal_rounding.py", *STEPS[:1]),
    "zonogpt/domains/interval": OPERATORS,
    "zonogpt/domains/rounding": ("test_rounding.py", "test_ellipsoidal_rounding.py", "test_certificate_choices.py"),
    "zonogpt/transforms": ("test_terms.py", "test_attention.py", "test_mlp.py", *STEPS, "test_prefixes.py"),
    "zonogpt/transforms/activations": ("test_lemmas.py", "test_nodes.py", "test_gelu.py", "test_mlp.py", *STEPS[:1]),
    "zonogpt/transforms/execution": ("test_terms.py", "test_execution.py"),
    "zonogpt/transforms/functions": OPERATORS[::-1][1:],
    "zonogpt/transforms/gelu": ("test_gelu.py", "test_lemmas.py", "test_mlp.py"),
    "zonogpt/transforms/norm_point": ("test_layernorm.py", "test_cancellation.py", *STEPS[:2]),
    "zonogpt/transforms/softmax": ("test_softmax.py", "test_terms.py", "test_operators.py", "test_attention.py"),
    "zonogpt/transforms/structured/layernorm": ("test_layernorm.py", "test_intervals_kept.py", *PAPER),
    "zonogpt/transforms/structured/attention": ("test_attention.py", *PAPER),
    "zonogpt/transforms/structured/decomposed_attention": ("test_attention.py", *PAPER),
    "zonogpt/transforms/structured/mlp": ("test_mlp.py", *PAPER),
    "zonogpt/transforms/structured/head": ("test_methods.py", "test_staircases.py", "test_execution.py"),
    "zonogpt/transforms/ellipsoidal": (*STEPS, "test_staircases.py", "test_execution.py",
                                       "test_certificate_choices.py"),
    "zonogpt/transforms/ellipsoidal/softmax": ("test_ellipsoidal_softmax.py", *STEPS),
    "zonogpt/methods": (*WHOLE_E, "test_ellipsoidal_steps.py"),
    "zonogpt/methods/structured": ("test_methods.py", "test_verify.py", "test_staircases.py", "test_amplifier.py",
                                   "test_execution.py"),
    "zonogpt/methods/baselines": OPERATORS,
    "zonogpt/methods/operators": (*OPERATORS, "test_execution.py"),
    "zonogpt/spec": ("test_wrong_arguments.py", "test_spec.py", "test_boxes.py", "test_groups.py", "test_method_e.py",
                     "test_verify.py"),
    "zonogpt/search": ("test_falsify.py", "test_attack.py", "test_groups.py", "test_right_claim.py"),
    "zonogpt/verification/verdict": ("test_verify.py", "test_groups.py", "test_falsify.py", "test_operators.py"),
    "zonogpt/verification/session": ("test_verify.py", "test_right_network.py", "test_falsify.py", "test_inspect.py"),
    "zonogpt/verification/precision": ("test_precision.py",),
    "zonogpt/verification/certificate": ("test_certificate_choices.py", "test_certificates.py"),
    "zonogpt/studies/radii/search": ("test_radius.py",),
    "zonogpt/studies/radii/prober": ("test_radius.py", "test_boxes.py"),
    "zonogpt/studies/radii/radius": ("test_radius.py",),
    "zonogpt/studies/rows": ("test_engine.py", "test_certify.py", "test_bench_run.py"),
    "zonogpt_apps/bench/training/intervals": ("test_bench_training.py",),
    "zonogpt_apps/bench/training/record": ("test_bench_training.py",),
    "zonogpt_apps/bench/instances": ("test_bench_run.py", "test_bench_report.py"),
    "zonogpt_apps/bench/make": ("test_bench_training.py", "test_bench_run.py"),
    "zonogpt_apps/bench/work": ("test_bench_run.py",),
    "zonogpt_apps/bench/report/reading": ("test_bench_report.py",),
    "zonogpt/model/sensitivity": ("test_right_claim.py", "test_near_ties.py"),
    "zonogpt/model/nodes": ("test_nodes.py", "test_parity.py", "test_method_e.py"),
    "zonogpt_check": CHECKER,
}  # fmt: skip

# What holds no mathematics, or only decides how much memory to take.
LEFT_OUT = (
    "__init__", "methods/plan", "methods/method", "methods/ledger", "methods/rules", "operators/plan", "domains/chunks",
    "domains/choices", "domains/finite", "spec/embed", "zonogpt_check/cli", "zonogpt_check/__main__",
)  # fmt: skip


def guards() -> dict[str, tuple[str, ...]]:
    """File below src: names of its tests."""
    out = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = str(file.relative_to(SOURCE).with_suffix(""))
        places = [place for place in TESTS if name == place or name.startswith((f"{place}/", f"{place}_"))]
        if places and not name.endswith(LEFT_OUT):
            out[f"{name}.py"] = TESTS[max(places, key=len)]
    return out


GUARDS = guards()

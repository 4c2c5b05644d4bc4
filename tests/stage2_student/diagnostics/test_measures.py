"""The measures on token tables written by hand: closed forms, and reasons where there is nothing to measure."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from tables import table

from stage2_student.diagnostics.agreement import agreement
from stage2_student.diagnostics.attribution import attribution
from stage2_student.diagnostics.block_removal import block_removal
from stage2_student.diagnostics.boundary_rms import boundary_rms
from stage2_student.diagnostics.forward import compare
from stage2_student.diagnostics.near_identity import near_identity
from stage2_student.diagnostics.token_loss import token_loss
from stage2_student.diagnostics.token_table import AGREES, DIFFERS, UNDECIDED
from stage2_student.diagnostics.token_types import BOUNDARY, DELIMITER, REGULAR

# --- two residuals ---

E = torch.eye(4, dtype=torch.float64)
TURNS = {
    "identity": (E[0], E[0], 0.0, 0.0),
    "only longer": (E[0], 3 * E[0], 0.0, 0.5),
    "a third of pi": (E[0], 0.5 * E[0] + math.sqrt(0.75) * E[1], 1 / 3, 0.5),
    "orthogonal": (E[0], E[1], 0.5, math.sqrt(0.5)),
    "opposite": (E[0], -2 * E[0], 1.0, 1.0),
    "out of nothing": (0 * E[0], E[1], 0.5, 1.0),
    "nothing": (0 * E[0], 0 * E[0], 0.0, 0.0),
    "tiny": (E[0], E[0] + 1e-9 * E[1], 1e-9 / math.pi, 0.5e-9),
}


@pytest.mark.parametrize("name", TURNS)
def test_angle_and_change_of_one_token(name):
    before, after, angle, change = TURNS[name]
    found = compare(before[None], after[None])
    assert found[0][0] == pytest.approx(angle, rel=1e-6, abs=1e-15) and found[1][0] == pytest.approx(change, rel=1e-6, abs=1e-15)


def test_equal_float32_residuals_have_exactly_no_angle():
    h = torch.randn(3000, 37, generator=torch.Generator().manual_seed(0))
    angle, change = compare(h, h.clone())
    assert angle.shape == (3000,) and not angle.any() and not change.any()


def test_the_angle_is_the_arccos_of_the_cosine():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 5000, 8, dtype=torch.float64, generator=generator)
    expected = torch.nn.functional.cosine_similarity(x, y).arccos() / torch.pi
    assert np.allclose(compare(x, y)[0], expected, rtol=1e-9)


# --- tables ---

TYPES = np.array([BOUNDARY, REGULAR, REGULAR, DELIMITER, BOUNDARY, REGULAR])


def test_boundary_rms_by_boundary_and_by_type():
    rms = np.stack([np.ones(6), np.array([50.0, 1, 3, 2, 70, 2]), np.full(6, 4.0)], axis=1)
    start, first, second = boundary_rms(table([4, 2], rms=rms), TYPES)
    assert [each["boundary"] for each in (start, first, second)] == ["start", "block_0", "block_1"]
    assert first["mean"] == pytest.approx(rms[:, 1].mean()) and first["kurtosis"] == pytest.approx(stats.kurtosis(rms[:, 1], fisher=False))
    assert first["by_type"]["document_boundary"]["mean"] == 60 and first["by_type"]["regular"]["mean"] == 2
    assert first["by_type"]["special"] == {"n": 0} | dict.fromkeys(("mean", "std", "kurtosis", "effective_outliers"), "no tokens")
    assert second["kurtosis"] == "no spread" and sum(first["histogram"]["counts"]) == 6


def test_attribution_gives_the_ratio_of_boundaries_to_regular_tokens():
    rms = np.stack([np.ones(6), np.array([50.0, 1, 3, 2, 70, 2]), np.array([np.nan, 1, 1, 1, 1, 1])], axis=1)
    start, first, broken = attribution(table([4, 2], rms=rms), TYPES)
    assert start["boundary_regular_ratio"] == 1 and first["boundary_regular_ratio"] == 30
    assert first["by_type"]["document_boundary"] == {"n": 2, "mean": 60.0, "max": 70.0}
    assert broken["boundary_regular_ratio"] == "not finite" and broken["by_type"]["regular"]["mean"] == 1
    (none, *_) = attribution(table([4, 2]), np.full(6, REGULAR))
    assert none["boundary_regular_ratio"] == "no tokens"


def test_block_removal_is_the_mean_of_paired_differences():
    random = np.random.Generator(np.random.PCG64(0))
    ce, worse = random.exponential(size=6), random.normal(0.5, 0.1, size=6)
    angle = np.stack([np.full(6, 0.25), np.linspace(0, 1, 6)], axis=1)
    whole = table([4, 2], ce=ce, angle=angle)
    found = block_removal(whole, [table([4, 2], ce=ce + worse), whole])
    labelled = [0, 1, 2, 4]
    first, second = found["blocks"]
    assert found["ce"] == pytest.approx(ce[labelled].mean()) and found["target_tokens"] == 4
    assert first["delta_ce"] == pytest.approx(worse[labelled].mean())
    assert first["standard_error"] == pytest.approx(stats.sem(worse[labelled]))  # far below that of two means apart
    assert (first["angular_distance"], first["documents"]) == (0.25, 2)
    assert (second["delta_ce"], second["standard_error"], second["standard_error_documents"]) == (0, 0, 0)
    assert second["angular_distance"] == pytest.approx(0.5)


def test_near_identity_by_block_and_type():
    change = np.stack([np.zeros(6), np.array([1.0, 0.5, 0.5, 0.5, 1.0, 0.5])], axis=1)
    rms = np.stack([np.ones(6), np.ones(6), np.full(6, 3.0)], axis=1)
    first, second = near_identity(table([4, 2], change=change, rms=rms), TYPES)
    assert first["score"] == 1 and first["scale"] == 1
    assert second["score"] == pytest.approx(1 / 3) and second["scale"] == 3
    assert second["by_type"]["document_boundary"]["score"] == 0 and second["by_type"]["regular"]["score"] == 0.5
    assert second["by_type"]["special"]["score"] == "no tokens"


def test_loss_by_type_of_the_label_and_of_the_input():
    ce = np.array([1.0, 2, 3, 100, 5, 100])  # rows 3 and 5 end their documents and do not count
    label_types = np.array([REGULAR, REGULAR, DELIMITER, 0, BOUNDARY, 0])
    found = token_loss(table([4, 2], ce=ce, kl=2 * ce), TYPES, label_types)
    assert found["all"]["ce"] == 2.75 and found["all"]["kl"] == 5.5 and found["all"]["n"] == 4
    by_label = {name: value["ce"] for name, value in found["by_label"].items()}
    assert by_label == {"document_boundary": 5, "special": "no tokens", "delimiter": 3, "regular": 1.5}
    by_input = {name: (value["n"], value["ce"]) for name, value in found["by_input"].items()}
    assert by_input == {"document_boundary": (2, 3), "special": (0, "no tokens"), "delimiter": (0, "no tokens"), "regular": (2, 2.5)}


def test_agreement_and_kl_by_position():
    kl = np.arange(10.0)
    same = np.array([AGREES, DIFFERS, AGREES, UNDECIDED, UNDECIDED, AGREES, DIFFERS, AGREES, AGREES, UNDECIDED], dtype=np.uint8)
    found = agreement(table([10], kl=kl, agreement=same))
    assert (found["n"], found["undecided"], found["kl"]) == (9, 2, 4.0) and found["top1_agreement"] == pytest.approx(5 / 7)
    buckets = [(b["from"], b["before"], b["n"], b["kl"], b["top1_agreement"]) for b in found["by_position"]]
    assert buckets == [(0, 1, 1, 0, 1), (1, 2, 1, 1, 0), (2, 4, 2, 2.5, 1), (4, 8, 4, 5.5, pytest.approx(2 / 3)), (8, 16, 1, 8, 1)]
    nothing = agreement(table([2], agreement=np.full(2, UNDECIDED, dtype=np.uint8)))
    assert nothing["top1_agreement"] == "no row with one best entry"


def test_nothing_that_is_not_a_number_reaches_a_record():
    broken = table(
        [4, 2], **{name: np.full(6, np.nan) for name in ("ce", "kl")}, rms=np.full((6, 3), np.inf), angle=np.full((6, 2), np.nan)
    )
    for found in (boundary_rms(broken, TYPES), attribution(broken, TYPES), block_removal(broken, [broken]), near_identity(broken, TYPES)):
        assert "not finite" in json.dumps(found, allow_nan=False)
    for found in (token_loss(broken, TYPES, TYPES), agreement(broken)):
        assert "not finite" in json.dumps(found, allow_nan=False)

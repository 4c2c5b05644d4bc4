"""What a manifest may ask to keep: fractions for c, what a sample can be, temperatures that a cache can tell apart."""

import pytest

from pipeline.contract.errors import ManifestError
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.manifest.strict import parse


@pytest.mark.parametrize("written, c", [("1/128", 1 / 128), (" 1 / 100 ", 0.01), (0.5, 0.5), ("0.25", 0.25), ("1/254", 1 / 254)])
def test_c_may_be_a_fraction(written, c):
    assert Targets(mode="sampled", c=written).c == c


@pytest.mark.parametrize("c", ["1/255", "1/1", "3/4", 0.007874, 0.3, 1 / 300])
def test_a_sample_is_of_weight_one_in_2_to_254(c):
    with pytest.raises(ManifestError, match="c="):
        parse(Targets, {"mode": "sampled", "c": c}, "here")


@pytest.mark.parametrize("c", ["1/0", "x", "-1/3", 0, 1, -0.1, float("nan")])
def test_c_is_a_probability(c):
    with pytest.raises(ManifestError, match=r"^here: c="):
        parse(Targets, {"mode": "threshold", "c": c}, "here")


def test_any_threshold_below_1_will_do():
    assert Targets(mode="threshold", c=1e-9).c == 1e-9


@pytest.mark.parametrize(
    "temperatures", [[], [0.0], [-1.0], [float("nan")], [float("inf")], [2.0, 2.0], [2.0, 2.0000001], [1.0000001], [1.0, 1.0000001]]
)
def test_temperatures_have_to_be_told_apart_by_their_names(temperatures):
    with pytest.raises(ManifestError, match="temperatures="):
        parse(Targets, {"temperatures": temperatures}, "here")


def test_1_is_always_among_the_temperatures():
    targets = Targets(temperatures=[4.0, 0.5])
    assert (targets.all_temperatures, targets.other_temperatures) == ([0.5, 1.0, 4.0], [0.5, 4.0])
    assert Targets().all_temperatures == [1.0] and Targets().other_temperatures == []


@pytest.mark.parametrize("temperatures", [[2.0], [1.0, 2.0]])
def test_a_sample_is_of_temperature_1(temperatures):
    with pytest.raises(ManifestError, match="a sample is of one temperature"):
        parse(Targets, {"mode": "sampled", "temperatures": temperatures}, "here")


@pytest.mark.parametrize("k", [0, 256])
def test_k_fits_a_byte(k):
    with pytest.raises(ManifestError, match=f"k={k}"):
        parse(Targets, {"k": k}, "here")

"""Student's t for whole degrees of freedom: what a mean over a few seeds is worth. No library, so that a report needs none."""

import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
POWER = 0.8


def t_cdf(t: float, df: int) -> float:
    """P(T <= t), a finite sum (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle, odd = math.atan2(t, math.sqrt(df)), df % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(df // 2):
        total += term
        term *= math.cos(angle) ** 2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    within = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 + within) / 2


@cache
def critical_t(df: int, confidence: float = CONFIDENCE) -> float:
    """Standard errors on either side of a mean that make its two-sided interval."""
    return _root(lambda t: t_cdf(t, df) - (1 + confidence) / 2, 1e6)


@cache
def resolvable(df: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """The smallest true effect, in standard errors, that a two-sided t-test at `alpha` finds with probability `power`."""
    critical = critical_t(df, 1 - alpha)
    return _root(lambda effect: _power(effect, critical, df) - power, 1e4)


def _power(effect: float, critical: float, df: int) -> float:
    """P(|T| > critical) of the noncentral t: over s, the estimated over the true standard error, by Simpson's rule."""
    normal, steps, end = NormalDist().cdf, 200, 1 + 9 / math.sqrt(df)
    scale = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
    total = 0.0
    for i in range(steps + 1):
        s = end * i / steps
        density = math.exp(scale - df * s * s / 2) * s ** (df - 1)
        found = normal(effect - critical * s) + normal(-effect - critical * s)
        total += density * found * (1 if i in (0, steps) else 4 if i % 2 else 2)
    return total * end / steps / 3


def _root(rising: Callable[[float], float], high: float) -> float:
    """Where a rising function is 0 between 0 and `high`, by bisection."""
    low = 0.0
    for _ in range(72):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2

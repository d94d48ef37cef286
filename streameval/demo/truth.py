"""The true figures of the simulated world: expectations of its model, by exact enumeration.

Nothing here counts events or touches the service's code: the numbers follow from the parameters
alone. Both depend on how long the window has been filled (`duration`), because users who ask often
are more likely to be in a window, and with their habit they react differently.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import exp
from typing import NamedTuple

import numpy as np

from streameval.base.arrays import Floats
from streameval.demo.simulator import Habit, Variant, World

LIKE_GAIN = 3.0


class Truth(NamedTuple):
    """Expected figures of one variant over a window."""

    click_rate: float
    like_rate: float
    ndcg_10: float
    clicks_per_impression: float
    empty_rate: float
    latency_ms: float


def truth(world: World, duration: float) -> dict[str, Truth]:
    """Compute each variant's expected figures, in a window with `duration` ms of the stream."""
    return {variant.name: _truth_of(world, variant, duration) for variant in world.variants}


def counted_share(world: World, delay: float) -> float:
    """Compute the share of feedback that counts: within A of its slate (in whole ms) and timely."""
    return (1 - exp(-(world.attribution_window + 1) / delay)) * (1 - world.late_share)


def _truth_of(world: World, variant: Variant, duration: float) -> Truth:
    full = 1 - world.empty_share
    # A user has a rate with the probability of at least one slate that is not empty; given that,
    # the rate has the same expectation however many there were.
    minutes = duration / 60_000 * full
    seen = np.array([h.share * (1 - exp(-h.requests_per_minute * minutes)) for h in world.habits])
    # Slates and impressions, in contrast, weigh each user by the requests.
    asked = np.array([h.share * h.requests_per_minute for h in world.habits])
    chances = [_chances(world, variant, habit) for habit in world.habits]
    clicks = np.array([click.mean() for click, _ in chances]) * counted_share(
        world, world.click_delay
    )
    likes = np.array([like.mean() for _, like in chances]) * counted_share(world, world.like_delay)
    ndcg = np.array([_expected_ndcg(world, variant, habit) for habit in world.habits])
    return Truth(
        click_rate=float(np.average(clicks, weights=seen)),
        like_rate=float(np.average(likes, weights=seen)),
        # An empty slate scores 0.
        ndcg_10=full * float(np.average(ndcg, weights=asked)),
        clicks_per_impression=float(np.average(clicks, weights=asked)),
        empty_rate=world.empty_share,
        latency_ms=world.least_latency_ms + world.mean_wait_ms,
    )


def _chances(world: World, variant: Variant, habit: Habit) -> tuple[Floats, Floats]:
    """Compute the probabilities of a click and of a like, by position."""
    click = habit.appetite * variant.appeal * np.array(world.bias)
    return click, click * world.like_share


@cache
def _expected_ndcg(world: World, variant: Variant, habit: Habit) -> float:
    """Compute E[NDCG] of a full slate over all patterns of gains (none, click, like) of items."""
    click, like = _chances(world, variant, habit)
    like_counts = like * counted_share(world, world.like_delay)
    # A click counts alone where its item's like did not happen or was lost.
    no_like = 1 - world.like_share * counted_share(world, world.like_delay)
    click_counts = click * counted_share(world, world.click_delay) * no_like
    by_outcome = np.stack([1 - click_counts - like_counts, click_counts, like_counts])
    patterns = np.array(list(product(range(3), repeat=len(world.bias))))
    probability = by_outcome[patterns, np.arange(len(world.bias))].prod(axis=1)
    gains = np.array([0.0, 1.0, LIKE_GAIN])[patterns]
    return float(probability @ _ndcg(gains))


def _ndcg(gains: Floats) -> Floats:
    """Compute NDCG of each row (gains in the order of the slate), 0 without a positive gain."""
    discount = 1 / np.log2(np.arange(2, gains.shape[1] + 2))
    ideal = -np.sort(-gains, axis=1) @ discount
    return np.divide(gains @ discount, ideal, out=np.zeros(len(gains)), where=ideal > 0)

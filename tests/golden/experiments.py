"""Ask other packages about the experiments of `tests/experiment_cases.py`.

    python tests/golden/experiments.py

Each package that is installed writes its figures and its version into experiments.json beside this
file; the figures of the others stay. They do not live in one environment: gbstats wants pandas 1,
confseq builds on Python 3.10 (with Boost's headers), expectation wants Python 3.12.

Differences are treatment − control; bounds are (low, high).
"""

import importlib.metadata
import json
import platform
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from experiment_cases import ALPHA, BOUNDS, PLANS, SPLITS, experiments  # noqa: E402

# Where GrowthBook's sequential test is narrowest; its ρ² is an approximation of ours.
TUNING = 5_000


def gbstats():
    from gbstats.frequentist.tests import (
        FrequentistConfig,
        SequentialConfig,
        SequentialTwoSidedTTest,
        TwoSidedTTest,
    )
    from gbstats.models.statistics import (
        RatioStatistic,
        RegressionAdjustedStatistic,
        SampleMeanStatistic,
        compute_theta,
    )

    def mean(values):
        v = np.array(values, float)
        return SampleMeanStatistic(n=len(v), sum=v.sum(), sum_squares=(v * v).sum())

    def ratio(arm):
        return RatioStatistic(
            n=len(arm.x),
            m_statistic=mean(arm.x),
            d_statistic=mean(arm.y),
            m_d_sum_of_products=float(np.dot(arm.x, arm.y)),
        )

    def adjusted(arm, theta=0.0):
        return RegressionAdjustedStatistic(
            n=len(arm.x),
            post_statistic=mean(arm.x),
            pre_statistic=mean(arm.before_x),
            post_pre_sum_of_products=float(np.dot(arm.x, arm.before_x)),
            theta=theta,
        )

    once = FrequentistConfig(alpha=ALPHA, difference_type="absolute")
    always = SequentialConfig(
        alpha=ALPHA, difference_type="absolute", sequential_tuning_parameter=TUNING
    )
    rows = []
    for treatment, control in experiments():
        arms = ratio(control), ratio(treatment)
        theta = compute_theta(adjusted(control), adjusted(treatment))
        less_noise = adjusted(control, theta), adjusted(treatment, theta)
        found = SequentialTwoSidedTTest(*arms, always)
        rows.append(
            {
                "difference": found.point_estimate,
                "one_look": TwoSidedTTest(*arms, once).confidence_interval,
                "all_looks": found.confidence_interval,
                "theta": theta,
                "adjusted_one_look": TwoSidedTTest(*less_noise, once).confidence_interval,
                "adjusted_all_looks": SequentialTwoSidedTTest(
                    *less_noise, always
                ).confidence_interval,
            }
        )
    return rows


def tea_tasting():
    import tea_tasting as tt
    from tea_tasting.aggr import read_aggregates

    rows = []
    for treatment, control in experiments():
        names = ("x", "y", "before_x", "before_y")
        plain = tt.RatioOfMeans("x", "y", alpha=ALPHA, power=0.8, rel_effect_size=0.05)
        adjusted = tt.RatioOfMeans("x", "y", "before_x", "before_y", alpha=ALPHA)
        import pyarrow as pa

        data = [
            read_aggregates(
                pa.table({name: getattr(arm, name) for name in names}),
                group_col=None,
                has_count=True,
                mean_cols=names,
                var_cols=names,
                cov_cols=[(a, b) for a in names for b in names if a < b],
            )
            for arm in (control, treatment)
        ]
        row = {}
        for name, metric in (("", plain), ("adjusted_", adjusted)):
            found = metric.analyze_aggregates(*data)
            row[f"{name}difference"] = found.effect_size
            row[f"{name}one_look"] = [found.effect_size_ci_lower, found.effect_size_ci_upper]
        row["users_for_5_percent"] = plain.solve_power_from_aggregates(data[0], "n_obs")[0].n_obs
        rows.append(row)
    return rows


def savvi():
    from savvi.linear_regression import LinearRegression
    from savvi.multinomial import Multinomial

    splits = []
    for counts, split in SPLITS[:2] + SPLITS[3:5]:
        test = Multinomial(ALPHA, np.array(split), k=1_000)
        test.update(np.array(counts))
        splits.append({"counts": counts, "split": split, "odds": float(test.odds)})
    rows = []
    for treatment, control in experiments():
        model = LinearRegression(ALPHA, 3)
        both = [(arm, float(arm is treatment)) for arm in (treatment, control)]
        past = np.array([v for arm, _ in both for v in arm.before_x], float)
        at = iter(past - past.mean())
        for arm, treated in both:
            for value in arm.x:
                model.update(np.array([value, 1.0, treated, next(at)], float))
        # φ such that the mixture is the one of our bounds: ρ²t = z²/φ.
        t = len(past)
        rho2 = (-2 * np.log(ALPHA) + np.log(-2 * np.log(ALPHA) + 1)) / TUNING
        model.phi = float(model.z2()[1]) / (t * rho2)
        low, high = model.calculate_conf_int()[1]
        rows.append({"difference": float(model.beta[1]), "adjusted_all_looks": [low, high]})
    return {"splits": splits, "experiments": rows}


def ssrm_test():
    from ssrm_test.ssrm_test import sequential_bayes_factors

    return [
        {
            "counts": counts,
            "split": split,
            "factor": float(
                sequential_bayes_factors(
                    np.array([counts]), np.array(split), dirichlet_concentration=1_000
                )[-1]
            ),
        }
        for counts, split in SPLITS
    ]


def expectation():
    from expectation.modules.boundaries import normal_mixture_bound

    return _mixtures(
        lambda *given, alpha_opt: normal_mixture_bound(*given, alpha_opt, is_one_sided=False)
    )


def confseq():
    from confseq.boundaries import normal_mixture_bound

    return _mixtures(
        lambda *given, alpha_opt: normal_mixture_bound(*given, alpha_opt, is_one_sided=False)
    )


def _mixtures(bound):
    """The boundary of a sum of t variables with variance 1."""
    return [
        {
            "users": users,
            "alpha": alpha,
            "planned": planned,
            "bound": float(bound(float(users), alpha, float(planned), alpha_opt=alpha)),
        }
        for users, alpha, planned in BOUNDS
    ]


def statsmodels():
    import statsmodels.api as sm
    from statsmodels.stats.power import NormalIndPower

    clustered = []
    for treatment, control in experiments():
        x, y = (np.array(getattr(treatment, k) + getattr(control, k), float) for k in "xy")
        treated = np.repeat([1.0, 0.0], [len(treatment.x), len(control.x)])
        # A slate a row would give the same: users are the clusters, weighted by their trials.
        fit = sm.WLS(x / y, np.column_stack((np.ones_like(treated), treated)), weights=y).fit(
            cov_type="cluster",
            cov_kwds={"groups": np.arange(len(x)), "use_correction": False},
        )
        clustered.append({"difference": fit.params[1], "stderr": fit.bse[1]})
    plans = [
        {
            "users": float(
                2
                * NormalIndPower().solve_power(
                    lift * rate / np.sqrt(rate * (1 - rate)), alpha=alpha, power=power
                )
            )
        }
        for lift, rate, alpha, power in PLANS
    ]
    return {"experiments": clustered, "plans": plans}


PACKAGES = {
    "confseq": confseq,
    "expectation": expectation,
    "gbstats": gbstats,
    "savvi": savvi,
    "ssrm-test": ssrm_test,
    "statsmodels": statsmodels,
    "tea-tasting": tea_tasting,
}


def main():
    path = FOLDER / "experiments.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    for name, ask in PACKAGES.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        known[name] = {
            "version": version,
            "python": platform.python_version(),
            "figures": ask(),
        }
        print(name, version)
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

"""Evaluation on a real local Spark: the bits of `streameval evaluate`, however Spark cuts the rows.

Without pyspark or Java these tests skip, and fail where CI is set.
"""

import json
import subprocess
import sys

import programs
import pytest
from clean_service import Service, stream
from test_outcomes import an_outcome
from typer.testing import CliRunner

from streameval.base.errors import InputError
from streameval.cli.app import app
from streameval.core.outcome import Span
from streameval.evaluation import spark as on_spark
from streameval.evaluation.sums import DEFAULT, Figure

FIGURES = [*DEFAULT, "ndcg@3", "map", "f1_mean@5", "auc"]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    programs.need_pinned("Spark")
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    begun = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "scratch"))
        .config("spark.sql.shuffle.partitions", "3")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)  # its workers are this Python
        started = begun.getOrCreate()
        yield started
        started.stop()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Files as a worker leaves them: two partitions, five hours; and a span not published."""
    service = Service(tmp_path_factory.mktemp("service") / "s").take(stream(slates=3_000))
    rows = [an_outcome(number) for number in range(50)]
    service.folder.write(Span(0, service.saved[0], service.saved[0] + 50, "cd"), rows)
    return str(service.outcomes)


def of_the_command(*arguments):
    answer = CliRunner().invoke(
        app, ["evaluate", *arguments, "--json", "--metrics", ",".join(FIGURES)]
    )
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def through_json(evaluation):
    return json.loads(json.dumps(evaluation.document()))


@pytest.mark.parametrize(("partitions", "records"), [(1, 100_000), (5, 97)])
def test_the_partitions_and_batches_of_spark_change_no_bit(session, outcomes, partitions, records):
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(records))
    rows = session.read.parquet(outcomes).repartition(partitions)
    found = through_json(on_spark.evaluate(rows, FIGURES, by=["variant"]))
    assert found == of_the_command(outcomes, "--by", "variant")
    assert found["figures"]["ndcg@10"]["n"] > 2_000
    assert len(found["segments"]) == 2


def test_wide_strings_of_the_session_change_no_bit(session, outcomes):
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    found = through_json(on_spark.evaluate(session.read.parquet(outcomes), FIGURES))
    session.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert found == of_the_command(outcomes)


def test_any_column_splits_and_null_is_no_value(session, outcomes):
    """`surface` is null everywhere, `hour` is a folder that Spark reads as a number."""
    rows = session.read.parquet(outcomes)
    found = on_spark.evaluate(rows, ["mrr"], by=["surface", "hour"])
    assert {surface for surface, _ in found.segments} == {""}
    assert sorted(int(hour) for _, hour in found.segments) == sorted(
        row["hour"] for row in rows.select("hour").distinct().collect()
    )
    assert found.figures() == on_spark.evaluate(rows, ["mrr"]).figures()


def test_no_row_has_no_figure(session, outcomes):
    rows = session.read.parquet(outcomes).where("user = 'nobody'")
    assert on_spark.evaluate(rows, ["mrr"]).figures() == {"mrr": Figure(None, None, None, 0)}


def test_what_cannot_be_answered_is_one_line(session, outcomes):
    rows = session.read.parquet(outcomes)
    with pytest.raises(InputError, match="has no column user, gains: read outcome files"):
        on_spark.evaluate(rows.select("request", "ranks"))
    with pytest.raises(InputError, match="by colour: rows can be split by partition, offset"):
        on_spark.evaluate(rows, by=["colour"])
    with pytest.raises(InputError, match="ndgc@10: no such figure"):
        on_spark.evaluate(rows, ["ndgc@10"])
    with pytest.raises(InputError, match="--by offset: more than 1,000 segments"):
        on_spark.evaluate(rows, by=["offset"])


WITHOUT_PANDAS = """
import sys

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"pandas", "pyspark"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import streameval.evaluation.spark
from streameval.cli.app import main
main()
"""


def test_neither_pandas_nor_pyspark_is_needed_without_spark(outcomes):
    """They are there for these tests only: a use of them elsewhere would not be noticed."""
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS, "evaluate", outcomes, "--json"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert json.loads(answer.stdout)["figures"]["ndcg@10"]["n"] > 2_000

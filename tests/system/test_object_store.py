"""Outcome files in an object store: a server for S3 here, with everything that a disk never does.

Moving is copying and deleting, there are no folders, and the store can be away, or be another's.
"""

import json
import random
import re
from functools import partial
from time import sleep

import pytest
import servers
import service as running
from clean_service import Service, failures, results, stream
from default_events import DIMENSIONS
from proxy import Proxy
from pyarrow.fs import FileSystem
from scene import Scene
from test_files_on_servers import compare_files, kill
from test_outcomes import OWNER, TIME, Recorded, an_outcome, clean, offsets
from typer.testing import CliRunner
from world import simulate

from streameval.base.errors import InputError, RefusedError, UnreachableError
from streameval.checks import run, specification
from streameval.checks.evidence import gather
from streameval.cli.app import app
from streameval.core.definition import Definition
from streameval.core.outcome import Span
from streameval.evaluation.readers.outcomes import files_of, record_batches
from streameval.files import locations, outcome_days
from streameval.files.locations import redact
from streameval.files.outcome_days import OutcomeDays
from streameval.files.outcome_files import OutcomeFolder, dataset

pytestmark = [pytest.mark.servers]
SEEDS = 5
HOUR = 3_600_000


@pytest.fixture(scope="module")
def bucket():
    with servers.s3() as started:
        yield started


@pytest.fixture
def path():
    return servers.unique("outcomes")


@pytest.fixture
def folder(bucket, path):
    opened = OutcomeFolder(bucket.uri(path), OWNER, {"version": "0"}, DIMENSIONS)
    opened.check()
    return opened


def files(bucket, path):
    """The objects below a folder, less the store's own marks of folders and the owner's."""
    return [name for name in bucket.names(path) if name.endswith(".parquet")]


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    assert "testing:" not in text and "endpoint" not in text


def away(bucket, path):
    """The beginning of a line on a folder, as a pattern; it may be of a proxy's port."""
    return re.sub(r":\d+/", r":\\d+/", f"outcomes: {redact(bucket.uri(path))}")


def test_a_span_is_seen_once_it_is_published_and_leaves_nothing_behind(bucket, folder, path):
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1), an_outcome(2, TIME + HOUR)])
    assert offsets(folder) == []
    assert all(name.startswith("_pending/p0-0-9-aa/") for name in files(bucket, path))
    for _ in range(2):  # whoever restores does it again
        folder.publish("p0-0-9-aa")
        assert offsets(folder) == [1, 2]
    assert files(bucket, path) == [
        "dt=2023-11-14/hour=22/p0-0-9-aa.parquet",
        "dt=2023-11-14/hour=23/p0-0-9-aa.parquet",
    ]


def test_old_hours_go(bucket, folder, path):
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1), an_outcome(2, TIME + HOUR)])
    folder.publish("p0-0-9-aa")
    assert folder.remove_before(TIME + HOUR) == 1
    assert files(bucket, path) == ["dt=2023-11-14/hour=23/p0-0-9-aa.parquet"]
    assert folder.remove_before(TIME + 9 * HOUR) == 1
    assert files(bucket, path) == []


def test_a_death_between_copying_and_deleting_is_made_good(bucket, folder, path):
    """Both are there; publishing again moves the same bytes onto the copy."""
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
    name = "dt=2023-11-14/hour=22/p0-0-9-aa.parquet"
    below = f"{bucket.name}/{path}"
    bucket.files(path).copy_file(f"{below}/_pending/p0-0-9-aa/{name}", f"{below}/{name}")
    assert offsets(folder) == [1]
    folder.publish("p0-0-9-aa")
    assert offsets(folder) == [1]
    assert files(bucket, path) == [name]


def test_two_workers_that_publish_one_span_at_once_do_not_mind(bucket, folder, path, monkeypatch):
    """The second has listed the file when the first moves it away."""
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
    other = OutcomeFolder(bucket.uri(path), OWNER, {}, DIMENSIONS)
    move = OutcomeFolder._move

    def overtaken(self, source, target):
        monkeypatch.setattr(OutcomeFolder, "_move", move)
        other.publish("p0-0-9-aa")
        move(self, source, target)

    monkeypatch.setattr(OutcomeFolder, "_move", overtaken)
    folder.publish("p0-0-9-aa")
    assert offsets(folder) == [1]


def test_what_lies_beyond_the_checkpoint_is_removed(bucket, folder, path):
    for span in (Span(0, 0, 9, "aa"), Span(0, 9, 12, "bb"), Span(1, 9, 12, "cc")):
        folder.write(span, [an_outcome(100 * span.partition + span.end)])
        folder.publish(span.name)
    folder.write(Span(0, 12, 15, "dd"), [an_outcome(15)])
    assert clean(folder, 0, 9, TIME) == 1
    folder.discard("p0-12-15-dd")
    assert offsets(folder) == [9, 112]
    assert not [name for name in files(bucket, path) if name.startswith("_pending")]


def test_the_folder_of_another_deployment_is_refused(bucket, folder, path):
    with pytest.raises(RefusedError, match=f"{away(bucket, path)}.*another deployment") as error:
        OutcomeFolder(bucket.uri(path), OWNER | {"group": "h"}, {}, DIMENSIONS).check()
    assert "testing" not in str(error.value)


def test_a_store_that_is_away_is_an_error_of_the_world_and_comes_back(bucket, path):
    """The worker tries the same step again until it goes through."""
    with Proxy(bucket.server.port) as proxy:
        folder = OutcomeFolder(bucket.uri(path, port=proxy.port), OWNER, {}, DIMENSIONS)
        folder.check()
        folder.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
        proxy.refuse = True
        proxy.cut()
        with pytest.raises(UnreachableError, match=f"^{away(bucket, path)} cannot") as error:
            folder.publish("p0-0-9-aa")
        one_line(error)
        proxy.refuse = False
        folder.publish("p0-0-9-aa")
        assert offsets(folder) == [1]
    assert files(bucket, path) == ["dt=2023-11-14/hour=22/p0-0-9-aa.parquet"]


def test_an_upload_that_is_cut_off_leaves_no_object_and_is_done_again(bucket, folder, path):
    """The store keeps its parts, and shows none of them."""
    with Proxy(bucket.server.port) as proxy:
        cut_off = OutcomeFolder(bucket.uri(path, port=proxy.port), OWNER, {}, DIMENSIONS)
        proxy.drop_replies(1_000, after=1)  # the upload is begun, no more is heard
        with pytest.raises(UnreachableError):
            cut_off.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
    assert bucket.uploads() > 0
    assert files(bucket, path) == []
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
    folder.publish("p0-0-9-aa")
    assert offsets(folder) == [1]


# --- one line for what is wrong, without the keys -------------------------------------------------


def test_a_bucket_that_is_absent_is_said_by_writer_and_readers(bucket):
    absent = bucket.uri("out", bucket="absent")
    with pytest.raises(UnreachableError, match="there is no bucket absent") as error:
        OutcomeFolder(absent, OWNER, {}, DIMENSIONS).check()
    one_line(error)
    with pytest.raises(UnreachableError, match="there is no bucket absent") as error:
        dataset(absent)
    one_line(error)


def test_keys_that_are_wrong_are_said_by_writer_and_readers():
    with servers.s3(strict=True) as strict:
        with pytest.raises(UnreachableError, match="ACCESS_DENIED") as error:
            OutcomeFolder(strict.uri("out"), OWNER, {}, DIMENSIONS).check()
        one_line(error)
        with pytest.raises(UnreachableError, match="INVALID_ACCESS_KEY_ID") as error:
            dataset(strict.uri("out"))
        one_line(error)


def test_a_uri_that_cannot_be_is_said_without_its_keys():
    with pytest.raises(InputError, match=r"^s3://b/x is not a URI of a file system") as error:
        locations.open_location("s3://key:secret@b/x?colour=red")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("s3://key:secret@b/x/y?region=r&endpoint_override=h", "s3://b/x/y"),
        ("s3://b", "s3://b"),
        ("abfss://container@account.example/x", "abfss://container@account.example/x"),
        ("abfs://account:key@host/x", "abfs://host/x"),
        ("file:///x/y", "file:///x/y"),
        ("/x/y?z", "/x/y?z"),
    ],
)
def test_messages_show_a_place_without_keys_and_options(name, seen):
    assert locations.redact(name) == seen


# --- readers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(bucket, tmp_path_factory):
    """What a service left on a disk, and its outcome files in the bucket, too."""
    left = Service(tmp_path_factory.mktemp("service") / "s").take(stream(slates=2_000))
    left.snapshot("later")
    for file in left.outcomes.rglob("dt=*/**/*.parquet"):
        name = f"{bucket.name}/outcomes/{file.relative_to(left.outcomes)}"
        with bucket.files("").open_output_stream(name) as target:
            target.write(file.read_bytes())
    return left


def evaluated(*arguments):
    answer = CliRunner().invoke(app, ["evaluate", *arguments, "--json", "--by", "variant"])
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_evaluate_gives_the_same_bits_from_a_disk_and_from_a_store(bucket, service):
    expected = evaluated(str(service.outcomes))
    assert evaluated(bucket.uri("outcomes")) == expected
    assert evaluated(f"file://{service.outcomes}") == expected
    assert expected["figures"]["ndcg@10"]["n"] > 1_000


def test_one_file_of_a_store_can_be_named(bucket, service):
    (name, *_) = bucket.names("outcomes")
    assert evaluated(bucket.uri(f"outcomes/{name}")) == evaluated(str(service.outcomes / name))


def test_spans_that_are_not_published_are_not_evaluated(bucket, folder, path):
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
    folder.publish("p0-0-9-aa")
    folder.write(Span(0, 9, 12, "bb"), [an_outcome(2)])
    assert evaluated(bucket.uri(path))["figures"]["ndcg@10"]["n"] == 1


def test_the_report_draws_what_lies_in_a_store(bucket, service, tmp_path):
    for place, name in ((bucket.uri("outcomes"), "store"), (str(service.outcomes), "disk")):
        arguments = [place, "--by", "variant", "--report", str(tmp_path / name)]
        answer = CliRunner().invoke(app, ["evaluate", *arguments])
        assert answer.exit_code == 0, answer.output
    assert (tmp_path / "store").read_bytes() == (tmp_path / "disk").read_bytes()


def test_tables_are_not_read_from_a_store(bucket, tmp_path):
    (tmp_path / "labels.csv").write_text("list,item\nr1,a\n")
    for arguments in (
        [bucket.uri("slates.csv"), "--labels", str(tmp_path / "labels.csv")],
        ["--run", bucket.uri("run.txt"), "--qrels", str(tmp_path / "labels.csv")],
    ):
        with pytest.raises(InputError, match="only outcome files are read from there") as error:
            CliRunner().invoke(app, ["evaluate", *arguments], catch_exceptions=False)
        one_line(error)


def test_a_bar_knows_how_much_there_is_to_read(bucket, service):
    expected = sum(file.stat().st_size for file in service.outcomes.rglob("*") if file.is_file())
    marker = (service.outcomes / "_streameval.json").stat().st_size  # not copied
    assert locations.size(str(service.outcomes)) == expected
    assert locations.size(bucket.uri("outcomes")) == expected - marker
    (name, *_) = bucket.names("outcomes")
    assert (
        locations.size(bucket.uri(f"outcomes/{name}")) == (service.outcomes / name).stat().st_size
    )


def test_evaluate_says_what_a_store_lacks(bucket):
    for uri, message in (
        (bucket.uri("nothing"), "no Parquet file below this folder"),
        (bucket.uri("x.parquet"), "no such file"),
        (bucket.uri("x", bucket="absent"), "there is no bucket absent"),
    ):
        with pytest.raises((InputError, UnreachableError), match=message) as error:
            CliRunner().invoke(app, ["evaluate", uri], catch_exceptions=False)
        one_line(error)


def test_small_files_of_a_folder_share_connections_and_come_in_their_order(bucket, folder, path):
    spans = [Span(0, number, number + 1, "aa") for number in range(20)]
    for span in spans:
        folder.write(span, [an_outcome(span.end)])
        folder.publish(span.name)
    names = files_of([bucket.uri(path)])
    first, last = (locations.open_location(name) for name in (names[0], names[-1]))
    assert first.files is last.files
    read = partial(record_batches, names, ["offset"], lambda _: None)
    rows = [record.column("offset").to_pylist() for record in read()]
    assert rows == [[int(name.split("-")[-2]) for name in names]]

    folder.remove(0, [spans[7].name], None)
    with pytest.raises(InputError, match=f"{spans[7].name}.parquet: no such file") as error:
        list(read())
    one_line(error)


@pytest.mark.parametrize(
    "place", ["a/b.parquet", "a%20b/c.parquet", "a/%C3%A4.parquet", "a//b", "/a", "a/b/", "a"]
)
def test_a_place_is_the_one_that_pyarrow_finds(place):
    uri = f"s3://key:secret@bucket/{place}?endpoint_override=127.0.0.1%3A1"
    found, (files, path) = locations.open_location(uri), FileSystem.from_uri(uri)
    assert found.path == path
    assert found.files.type_name == files.type_name


@pytest.fixture
def moved(bucket, service):
    """The same service, whose outcome files are those in the bucket."""
    kept, service.outcomes = service.outcomes, bucket.uri("outcomes")
    yield service
    service.outcomes = kept


def test_the_windows_are_recomputed_from_a_store(bucket, moved):
    """DuckDB reads through pyarrow: it needs no extension."""
    name, figure = "windows_match_outcomes", re.compile(r"all [\d,]+ matured figures agree with")
    found = results(moved, reference=bucket.uri("outcomes"))
    assert figure.match(found[name].message)
    assert found["drift"].passed, "a folder differs nothing from itself"
    (removed, *_) = bucket.names("outcomes")
    bucket.files("").delete_file(f"{bucket.name}/outcomes/{removed}")
    assert name in failures(results(moved, reference=None))


def test_an_hour_of_a_store_is_copied_to_this_disk(bucket, moved, tmp_path, monkeypatch):
    def rows(source):
        return sorted(map(repr, source.to_table().to_pylist()))

    monkeypatch.setattr(outcome_days, "FEW", 0)
    days = OutcomeDays(bucket.uri("outcomes"), DIMENSIONS, tmp_path)
    found = rows(days.dataset(days.days[0], days.days[-1]))
    assert found == rows(dataset(bucket.uri("outcomes"), DIMENSIONS))
    assert any(tmp_path.rglob("*.parquet"))
    (removed, *_) = bucket.names("outcomes")
    bucket.files("").delete_file(f"{bucket.name}/outcomes/{removed}")
    again = OutcomeDays(bucket.uri("outcomes"), DIMENSIONS, tmp_path)
    fewer = rows(again.dataset(days.days[0], days.days[-1]))
    assert len(fewer) < len(found)


def test_a_file_that_goes_while_it_is_read_is_one_line(bucket, folder, path):
    folder.write(Span(0, 0, 9, "aa"), [an_outcome(1)])
    folder.publish("p0-0-9-aa")
    with gather(bucket.uri(path), Definition(), TIME) as evidence:
        clean(folder, 0, 0, None)
        checks = run.run(evidence, specification.load(None))
        with pytest.raises(UnreachableError, match="outcomes: a file cannot be read") as error:
            list(checks)
    one_line(error)


# --- every fault at once, in the model ------------------------------------------------------------


def test_whatever_fails_each_slate_stands_in_the_store_once(seed, monkeypatch, bucket, path, quiet):
    """As `test_outcomes` has it on a disk: kills, zombies, lost replies, a Redis that goes back."""
    simulate(seed, monkeypatch, type("There", (Recorded,), {"root": bucket.uri(path)}))


# --- the whole service ----------------------------------------------------------------------------


def test_each_slate_stands_in_the_store_once_whatever_is_killed_or_away(bucket, path):
    """Workers wait for the store as for Redis: counters are not committed ahead of their slates."""
    rng, away = random.Random(1), f"outcomes: {redact(bucket.uri(path))} cannot be used now"
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    with Proxy(bucket.server.port) as proxy:
        files = {"outcomes": bucket.uri(path, port=proxy.port), "checkpoint_interval": "1s"}
        with Scene(kafka, redis, settings=files) as scene:
            scene.worker()
            scene.worker()
            sending = scene.producing(24_000, 10)
            for number in range(3):
                sleep(rng.uniform(1.5, 3.0))
                if number == 1:
                    up(scene.workers)  # to begin, a worker needs the store
                    proxy.refuse = True
                    proxy.cut()
                    running.wait_for(lambda: away in said(scene), 60, away)
                    proxy.refuse = False
                else:
                    kill(rng.choice(scene.workers))
            sending.result()
            log, ends = running.read_log(kafka.port, scene.topic, scene.partitions)
            running.wait_until_read(redis.url, scene.topic, ends)
            up(scene.workers)
            for worker in scene.workers:
                assert worker.stop() == 0, worker.logged()[-3000:]
            assert compare_files(scene, log) > 500
            assert "testing:" not in said(scene)


def up(workers):
    for worker in workers:
        running.wait_for(lambda one=worker: one.page("/readyz"), 60, "a worker is ready")


def said(scene):
    return "".join(worker.logged() for worker in scene.workers)

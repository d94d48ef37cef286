"""Settings: what a file and the environment may say, and the line that says what is wrong."""

import re
from pathlib import Path

import pytest

from streameval.base.durations import format_duration, parse_duration
from streameval.base.errors import ConfigError
from streameval.cli.common import settings_of
from streameval.config.load import OTHER_NAMES, load, reference, settings_file
from streameval.config.settings import Settings
from streameval.core.definition import Definition, Positive, Window
from streameval.store.redis_store import RedisStateStore

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"

LONG = "a" * 300  # no file can have this name


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for key in Settings.model_fields:
        monkeypatch.delenv(f"STREAMEVAL_{key.upper()}", raising=False)
        monkeypatch.delenv(f"STREAMEVAL_{key.upper()}_FILE", raising=False)
    monkeypatch.delenv("STREAMEVAL_CONFIG", raising=False)


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "streameval.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def refused(write):
    """Load a file that must be refused, and return the message without file and line."""

    def refused(text):
        path = write(text)
        with pytest.raises(ConfigError) as caught:
            load(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        return re.sub(r"^line \d+: ", "", message.removeprefix(f"{path}: "))

    return refused


def test_without_a_file_the_definition_is_the_documented_one():
    assert load(None).definition() == Definition()


@pytest.mark.parametrize("text", ["'watch>0'", "'watch > 0.0'", "{kind: watch, above: 0}"])
def test_a_value_above_a_number_is_at_least_the_next_one(write, text):
    (positive,) = load(write(f"positives: [{text}]")).definition().positives
    assert positive == Positive("watch", 5e-324), "the least number above 0"
    assert not positive.threshold <= 0.0


@pytest.mark.parametrize("bound", [0.5, -1.0, 1e12, 0.1])
def test_no_number_lies_between_a_bound_and_its_threshold(write, bound):
    (positive,) = load(write(f"positives: ['watch>{bound!r}']")).definition().positives
    assert positive.threshold > bound
    assert (bound + positive.threshold) / 2 in {bound, positive.threshold}


def test_a_file_defines_the_figures(write):
    settings = load(
        write(
            """
            positives: [click, "watch >= 0.5", purchase]
            gains: {purchase: 3}
            ndcg_gain: exponential
            dimensions: [variant, surface]
            ks: [1, 20]
            windows: [{size: 90s, slide: 500ms}]
            attribution_window: 10m
            allowed_lateness: 0
            max_clock_skew: 1s
            max_segments: 7
            """
        )
    )
    assert settings.definition() == Definition(
        positives=(Positive("click"), Positive("watch", 0.5), Positive("purchase")),
        gains={"purchase": 3.0},
        ndcg_gain="exponential",
        dimensions=("variant", "surface"),
        ks=(1, 20),
        windows=(Window("90s", 90_000, 500),),
        attribution_window=600_000,
        allowed_lateness=0,
        max_clock_skew=1_000,
        max_segments=7,
    )


def test_no_dimensions_are_possible(write):
    assert load(write("dimensions: []")).definition().dimensions == ()


def test_snapshots_do_not_go_to_a_folder_that_is_called_like_a_uri(refused):
    assert refused("snapshots: s3://bucket/snapshots") == (
        "snapshots: snapshots go to a folder that all workers share, not to a URI"
    )


def test_an_empty_file_says_nothing(write):
    assert load(write("# all defaults\n")) == load(None)


def test_the_environment_beats_the_file_one_key_at_a_time(write, monkeypatch):
    monkeypatch.setenv("STREAMEVAL_KS", "[3,7]")
    monkeypatch.setenv("STREAMEVAL_GAINS", '{"like":2}')
    monkeypatch.setenv("STREAMEVAL_TICK", "500ms")
    monkeypatch.setenv("STREAMEVAL_GROUP", "")  # empty: as if unset
    settings = load(write("ks: [1]\ngains: {click: 3}\ntopic: t\ngroup: g"))
    assert settings.ks == (3, 7)
    assert settings.gains == {"like": 2.0}
    assert settings.tick == 500
    assert (settings.topic, settings.group) == ("t", "g")


def test_the_usual_file_of_the_folder_is_read(write, tmp_path, monkeypatch, capsys):
    """As `init` writes it; a file that is named comes before it."""
    monkeypatch.chdir(tmp_path)
    assert settings_file(None) is None
    (tmp_path / "streameval.yaml").write_text("ks: [7]")
    assert settings_of(None).ks == (7,)
    assert capsys.readouterr().err == "configuration: streameval.yaml of this folder\n"
    assert load(None).ks == Settings().ks, "a notebook reads what it is told"
    named = write("ks: [8]")
    assert settings_of(named).ks == (8,)
    monkeypatch.setenv("STREAMEVAL_CONFIG", str(named))
    assert settings_of(None).ks == (8,)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("dimensions: variant", "dimensions: this key is a list: write dimensions: [variant]"),
        ("dimensions: variant,surface", "write dimensions: [variant, surface]"),
        ("ks: 10", "ks: this key is a list: write ks: [10]"),
        ("positives: click", "positives: this key is a list: write positives: [click]"),
    ],
)
def test_one_value_for_a_list_is_shown_as_a_list(refused, text, cure):
    assert refused(text).endswith(cure)


def test_the_environment_may_name_the_file(write, monkeypatch):
    monkeypatch.setenv("STREAMEVAL_CONFIG", str(write("topic: named")))
    assert load(None).topic == "named"


def test_variables_that_name_no_key_are_left_alone(monkeypatch):
    """Kubernetes sets some for each service, here `streameval` and `streameval-redis`."""
    for name in ("PORT", "SERVICE_HOST", "PORT_8080_TCP", "REDIS_PORT", "REDIS_SERVICE_PORT"):
        monkeypatch.setenv(f"STREAMEVAL_{name}", "tcp://10.0.0.1:8080")
    assert load(None).listen == "127.0.0.1:8080"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("STREAMEVAL_POSITIVS", "STREAMEVAL_POSITIVES"),
        ("STREAMEVAL_TOPICS", "STREAMEVAL_TOPIC"),
        ("STREAMEVAL_KAFAK", "STREAMEVAL_KAFKA"),
        ("STREAMEVAL_REDIS_PASWORD_FILE", "STREAMEVAL_REDIS_PASSWORD_FILE"),
    ],
)
def test_a_variable_that_nearly_names_a_key_is_refused(monkeypatch, variable, meant):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigError, match=f"^{variable}: .* did you mean {meant}\\?$"):
        load(None)


@pytest.mark.parametrize("key", sorted(OTHER_NAMES))
def test_another_systems_name_of_a_key_is_no_key_of_ours(key):
    assert key not in Settings.model_fields
    assert OTHER_NAMES[key] in Settings.model_fields


def test_dead_letters_go_beside_the_topic_unless_the_file_says_where(write):
    assert load(None).dead_letter_topic == "recsys-events.dead-letter"
    assert load(write("topic: t")).dead_letter_topic == "t.dead-letter"
    assert load(write("topic: t\ndead_letter_topic: bin")).dead_letter_topic == "bin"


KINDS = "positives.0: write a kind, kind>=number or kind>number, like watch>=0.5,"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windowz: []", "windowz: no such key; did you mean windows?"),
        ("qqqqqq: 1", "qqqqqq: no such key; docs/configuration.md lists them"),
        ("1: 2", "1: no such key; docs/configuration.md lists them"),
        (
            "windows: [{sise: 5m, slide: 1s}]",
            "windows.0.sise: no such key; did you mean size?",
        ),
        (
            "windows: [{size: 5m, slide: 7s}]",
            "windows.0: the slide 7s does not divide the size 5m",
        ),
        (
            "windows: [{size: 5m, slide: 10m}]",
            "windows.0: the slide 10m does not divide the size 5m",
        ),
        (
            "windows: [{size: 5m, slide: 1ms}]",
            "windows.0: a slide of 1ms cuts 5m into 300000 panes, at most 10000 are possible",
        ),
        (
            "windows: [{size: 5m, slide: 5s}, {size: 5m, slide: 1s}]",
            "windows: '5m' stands there twice",
        ),
        ("allowed_lateness: 1h", "allowed_lateness: 1h is more than attribution_window, 30m"),
        ("attribution_window: 0", "attribution_window: must be from 1ms to 366d, not 0"),
        ("checkpoint_interval: 2d", "checkpoint_interval: must be from 1s to 1h, not 2d"),
        ("ks: [10, 5]", "ks: write them rising and once each, not [10, 5]"),
        ("ks: [5, 5]", "ks: write them rising and once each, not [5, 5]"),
        ("ks: [yes]", "ks.0: must be a number"),
        ("positives: [click, 'click>=2']", "positives: 'click' stands there twice"),
        (
            "positives: [{kind: watch, threshold: 1, above: 0}]",
            "positives.0: write threshold or above for 'watch', not both",
        ),
        (
            "positives: ['watch>=much']",
            f"{KINDS} not 'watch>=much'",
        ),
        (
            "positives: ['watch>=nan']",
            f"{KINDS} not 'watch>=nan'",
        ),
        (
            "positives: ['>=1']",
            "positives.0: must be 1 to 64 characters without control characters",
        ),
        *(
            (
                f"positives: ['{kind}']",
                f"{KINDS} not '{kind}'",
            )
            for kind in ("watch>>0.5", "watch=0.5", "watch=>0.5", "watch<5", "watch > ")
        ),
        (
            "gains: {purchase: 3}",
            "gains: 'purchase' is not in positives, so nothing would gain by it",
        ),
        ("kafka: kafka://a:9092", "kafka: write host:port, like a:9092, not 'kafka://a:9092'"),
        ("kafka: b:1,PLAINTEXT://a:9092", "kafka: write host:port, like a:9092, not 'PLAINTEXT"),
        ("kafka_bootstrap: a:1", "kafka_bootstrap: no such key; did you mean kafka?"),
        ("bootstrap_servers: a:1", "bootstrap_servers: no such key; did you mean kafka?"),
        ("port: 8080", "port: no such key; did you mean listen?"),
        (
            "listen: 8080",
            "listen: write host:port: 127.0.0.1:8080 for this machine, 0.0.0.0:8080 for all",
        ),
        ("listen: '8080'", "listen: write host:port: 127.0.0.1:8080 for this machine"),
        ("windows: [5m]", "windows.0: write {size: 5m, slide: 5s}, not '5m'"),
        ("dimensions: [surface, surface]", "dimensions: 'surface' stands there twice"),
        ("kafka: localhost", "kafka: write host:port, not 'localhost'"),
        ("kafka: a:1 b:2", "kafka: write host:port, with a comma between several, not 'a:1 b:2'"),
        ("kafka: a:1;b:2", "kafka: write host:port, with a comma between several, not 'a:1;b:2'"),
        ("kafka: 'a: 1'", "kafka: write host:port, not 'a: 1'"),
        ("kafka: 'a:1,b:99999'", "kafka: write host:port, not 'b:99999'"),
        ("kafka_password: secret", "kafka_security_protocol: a password needs SASL_SSL"),
        ("kafka_security_protocol: SASL_SSL", "kafka_username, kafka_password: a SASL protocol"),
        ("kafka_ca_file: /does/not/exist", "kafka_ca_file: no such file: '/does/not/exist'"),
        (f"checks: {LONG}", f"checks: '{LONG}' cannot be used: File name too long"),
        (f"snapshots: {LONG}", f"snapshots: '{LONG}' cannot be used: File name too long"),
        ("topic: t\ndead_letter_topic: t", "dead_letter_topic: must not be the topic"),
        ("ks: [1]\nks: [2]", "the key 'ks' stands there twice"),
        (
            "ks: [1]\nwindows: 2026-02-30",
            "'2026-02-30' is neither a date nor a number: day",
        ),
        ("ks: !!bool any", "'any' does not fit its tag"),
        ("ks: !!timestamp any", "'any' does not fit its tag"),
        ("ks: " + 2_000 * "[", "is nested too deep; write keys, like `ks: [5, 10]`"),
        ("margin: 1", "margin: no such key; "),
        ("ks: [1", "expected ',' or ']'"),
        ("- ks", "write keys and values, like `ks: [5, 10]`"),
        ("just words", "write keys and values, like `ks: [5, 10]`"),
    ],
)
def test_what_cannot_be_is_refused_with_the_key_and_what_to_do(refused, text, message):
    assert refused(text).startswith(message)


WINDOWS = "windows:\n  - {size: 5m, slide: 1s}\n  - size: 5m"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ks: [1]\nks: [2]", "line 2: the key 'ks' stands there twice"),
        ("\n# a line\ntopik: t", "line 3: topik: no such key; did you mean topic?"),
        (f"{WINDOWS}\n    sise: 1", "line 4: windows.1.sise: no such key; did you mean size?"),
        (WINDOWS, "line 3: windows.1.slide: is missing"),
        ("topic: t\nks:\n  - 1\n  - 0", "line 4: ks.1: "),
        ("topic: t\nallowed_lateness: 1h", "line 2: allowed_lateness: 1h is more than"),
        ("ks: [1]\ndimensions: a", "line 2: dimensions: this key is a list: write dimensions: [a]"),
        ("ks: [1.5]", "line 1: ks.0: write a whole number, not 1.5"),
        ("topic: t\ngains: {click: much}", "line 2: gains.click: write a number, not 'much'"),
        ("snapshots: 5", "line 1: snapshots: write a path, not 5"),
        ("pseudonymize: short", "line 1: pseudonymize: write 8 characters or more"),
        ("topic: t\ngains: 5", "line 2: gains: write keys and values, not 5"),
        ("positives: [click]\ngroup: 5", "line 2: group: write a text, not 5"),
        (
            "experiments:\n- {name: a, arm: v, primry: b}",
            "line 2: experiments.0.primry: no such",
        ),
    ],
)
def test_an_error_names_the_line(write, text, message):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_an_error_of_the_environment_names_the_variable(write, monkeypatch):
    monkeypatch.setenv("STREAMEVAL_KS", "[3, 0]")
    with pytest.raises(ConfigError, match=r"^STREAMEVAL_KS: ks\.1: "):
        load(write("topic: t"))


@pytest.mark.parametrize(
    "text",
    [
        "positives: []",
        "positives: click",
        "gains: {a: -1}",
        "gains: {a: .nan}",
        "gains: {a: 1.0e+9}",
        "gains: [a]",
        "ndcg_gain: log",
        "dimensions: [user_id]",
        "dimensions: [a b]",
        "dimensions: [class]",
        "dimensions: [country, Country]",
        "dimensions: [a, b, c, d, e]",
        "ks: []",
        "ks: [0]",
        "ks: [1001]",
        "ks: [1.5]",
        "windows: []",
        "windows: [{size: 5m}]",
        "windows: [{size: 400d, slide: 1d}]",
        "max_segments: 0",
        "batch_events: 1000000",
        "topic: 'no spaces'",
        "topic: ..",
        "group: ''",
        "redis: http://127.0.0.1",
        "redis: 127.0.0.1:6379",
        "start_from: middle",
        "log_level: loud",
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_key(refused, text):
    assert refused(text).startswith(text.partition(":")[0])


def test_a_file_that_is_not_there_or_is_no_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file: .*streameval init"):
        load(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "binary.yaml")


def test_a_list_in_the_environment_that_is_no_json_is_refused(monkeypatch):
    monkeypatch.setenv("STREAMEVAL_DIMENSIONS", "variant")
    with pytest.raises(
        ConfigError, match=r'^STREAMEVAL_DIMENSIONS: write JSON, like \["variant"\]'
    ):
        load(None)


# --- Durations


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("24h", 86_400_000),
        ("1d", 86_400_000),
        (0, 0),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_a_duration_is_a_whole_number_and_a_unit(text, ms):
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "value", [30, "30", "1.5h", "5 m", "5M", "-5s", "", "m", "1h30m", None, True, False, 0.5, "٣s"]
)
def test_a_bare_number_or_anything_else_is_no_duration(value):
    with pytest.raises(ValueError, match="write a whole number and a unit"):
        parse_duration(value)


@pytest.mark.parametrize("text", ["0", "1ms", "1500ms", "30s", "90m", "5h", "366d"])
def test_a_duration_is_written_as_it_is_read(text):
    assert format_duration(parse_duration(text)) == text


# --- Secrets


def test_a_secret_may_stand_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "password").write_text("p@ss/word\n")
    monkeypatch.setenv("STREAMEVAL_REDIS", "rediss://bob@redis.example:6380/1")
    monkeypatch.setenv("STREAMEVAL_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    assert load(None).redis_url() == "rediss://bob:p%40ss%2Fword@redis.example:6380/1"


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://a:1,b:2,[::1]:3",
        "rediss+cluster://user@a,b/0?ssl_check_hostname=false",
        "redis+sentinel://a:1,b/main/2?sentinel_password=any",
        "rediss+sentinel://a/main?ssl_cert_reqs=none",
    ],
)
def test_several_redis_servers_have_one_url(url, write):
    settings = load(write(f"redis: '{url}'\nredis_password: p/w"))
    assert settings.redis_url().split("@")[1] == url.split("@")[-1].split("//")[-1]
    assert RedisStateStore(settings.redis_url, "g", "t", ["click"]).address


def test_a_secret_of_a_file_is_read_again(tmp_path, monkeypatch):
    secret = tmp_path / "password"
    secret.write_text("one\n")
    monkeypatch.setenv("STREAMEVAL_REDIS_PASSWORD_FILE", str(secret))
    settings = load(None)
    secret.write_text("two\n")
    assert settings.redis_url() == "redis://:two@127.0.0.1:6379/0"
    secret.unlink()
    assert settings.redis_url() == "redis://:one@127.0.0.1:6379/0", "as it was at the start"


def test_a_secret_file_beats_the_configuration_file(tmp_path, write, monkeypatch):
    (tmp_path / "password").write_text("new")
    monkeypatch.setenv("STREAMEVAL_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    password = load(write("redis_password: old")).redis_password
    assert password.get_secret_value() == "new"


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("redis://h:6379/abc", "the database is a number"),
        ("redis://h:6379/0/1", "the database is a number"),
        ("redis://h/0?db=1", "only rediss:// has options, and only these: ssl_ca_certs, "),
        ("rediss://h/0?socket_timeout=abc", "only rediss:// has options"),
        ("redis://h/0?ssl_ca_certs=/etc/hostname", "only rediss:// has options"),
        ("rediss://h/0?ssl_ca_certs=/absent", "ssl_ca_certs: write a file that exists"),
        ("rediss://h/0?ssl_cert_reqs=maybe", "ssl_cert_reqs: write none or required"),
        ("rediss://h/0?ssl_check_hostname=", "ssl_check_hostname: write false or true"),
        ("redis://h/0?hush", "write redis://HOST:PORT/DATABASE"),
        ("redis://h:1,h:2/0", "write redis://HOST:PORT/DATABASE"),
        ("redis+hush://h:1", "write redis://HOST:PORT/DATABASE"),
        ("redis+cluster://h:1,h:x", "write redis://HOST:PORT/DATABASE"),
        ("redis+cluster://h:1,h:2/3", "a cluster has no databases"),
        ("redis+cluster://h:1?ssl_cert_reqs=none", "only rediss:// has options"),
        ("redis+sentinel://h:1,h:2/", "name the master that the Sentinels watch"),
        ("redis+sentinel://h:1/main?ssl_cert_reqs=none", "only rediss:// has options"),
        ("redis://h/0#hush", "write redis://HOST:PORT/DATABASE"),
    ],
)
def test_a_redis_url_that_means_something_else_than_it_says_is_refused(refused, url, cure):
    said = refused(f"redis: '{url}'")
    assert said.startswith(f"redis: {cure}")
    assert not {"hush", "abc", "absent"} & set(re.findall(r"[a-z]+", said))


def test_a_redis_url_may_name_certificates(write):
    url = f"rediss://bob@h:1/3?ssl_ca_certs={__file__}&ssl_check_hostname=false"
    settings = load(write(f"redis: '{url}'\nredis_password: p"))
    store = RedisStateStore(settings.redis_url, "g", "t", ["click"])
    made = store._servers._client.connection_pool.connection_kwargs
    assert (made["db"], made["ssl_ca_certs"]) == (3, __file__)
    assert made["credential_provider"].get_credentials() == ("bob", "p")
    assert made["ssl_check_hostname"] is False


@pytest.mark.parametrize("given", ["", "\noutcomes: o", "\nsnapshots: s"])
def test_checks_need_snapshots_and_outcomes(refused, given):
    assert refused(f"checks: {__file__}{given}").startswith(
        "checks: set snapshots and outcomes too"
    )


@pytest.mark.parametrize("given", ["o", "o/s", "./o/../o"])
def test_snapshots_among_outcomes_are_refused(refused, write, given, tmp_path):
    """Every command that reads outcomes would take their files for outcomes."""
    assert refused(f"outcomes: o\nsnapshots: {given}").startswith(
        "snapshots: name a folder outside of `outcomes`"
    )
    there = f"outcomes: file://{tmp_path}/o\nsnapshots: {tmp_path}/o/s"
    assert refused(there).startswith("snapshots: name a folder outside")
    assert load(write(f"outcomes: {given}/deeper\nsnapshots: {given}")).snapshots


def test_a_url_without_a_password_is_left_as_it_is():
    assert load(None).redis_url() == "redis://127.0.0.1:6379/0"


def test_a_secret_given_twice_or_unreadable_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMEVAL_KAFKA_PASSWORD_FILE", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"^STREAMEVAL_KAFKA_PASSWORD_FILE: cannot read"):
        load(None)
    monkeypatch.setenv("STREAMEVAL_KAFKA_PASSWORD", "x")
    with pytest.raises(ConfigError, match="kafka_password is also given directly"):
        load(None)


def test_secrets_are_never_shown(write, refused):
    settings = load(
        write(
            "kafka_security_protocol: SASL_SSL\nkafka_username: bob\nkafka_password: hush1\n"
            "redis: redis://:hush2@h:1/0\nredis_password: hush3"
        )
    )
    assert "hush" not in f"{settings!r} {settings} {settings.model_dump()}"
    assert "hush" not in refused("redis: 'hush://hush:hush@h:hush'")
    assert "hush" not in refused("kafka_password: [hush]")
    assert "hush" not in refused("redis_password: {hush: hush}")


# --- The rest


def test_where_to_listen_is_a_host_and_a_port(write):
    settings = load(write("listen: '[::1]:0'"))
    assert (settings.listen_host, settings.listen_port) == ("::1", 0)


def test_settings_cannot_change_once_loaded():
    with pytest.raises(ValueError, match="frozen"):
        load(None).topic = "other"


def test_the_documentation_is_what_the_model_says():
    """If this fails: python -m streameval.config.reference > docs/configuration.md."""
    if not DOCS.exists():
        pytest.skip("docs/ is not part of what is installed")
    assert DOCS.read_text(encoding="utf-8") == reference()


def test_the_documentation_has_a_row_with_a_sentence_for_every_key():
    rows = [line.split(" | ") for line in reference().splitlines() if line.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == list(Settings.model_fields)
    assert all(len(row) == 4 and row[3].rstrip("| ").endswith(".") for row in rows)


def test_workers_have_the_same_digests_where_their_values_are_the_same(tmp_path, monkeypatch):
    """A file counts by its content, and what each worker has for itself does not count."""
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "mine.yaml"
    profile.write_text("native: true")
    given = {"profile": "./mine.yaml", "outcomes": "/data", "pseudonymize": 500 * "a long key"}
    first = Settings(**given, listen="127.0.0.1:1", log_level="debug").digests()
    assert first == Settings(**given).digests()
    experiment = {"name": "e", "arm": "variant", "control": "A", "primary": "ndcg@10"}
    changed = {
        "outcomes": {"outcomes": None},
        "pseudonymize": {"pseudonymize": "another key"},
        "experiments": {"experiments": [experiment]},
        "user_ttl": {"user_ttl": "1d"},
        "profile": {"profile": "segment"},
    }
    for key, values in changed.items():
        other = Settings(**given | values).digests()
        assert {name for name in first if first[name] != other[name]} == {key}
    profile.write_text("native: true\ndescription: changed")
    other = Settings(**given).digests()
    assert {name for name in first if first[name] != other[name]} == {"profile"}
    assert not any("key" in value for value in first.values())

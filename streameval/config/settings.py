"""The settings model: every key, its default, its bounds and the sentence that documents it.

`config.load` fills it from a file and the environment. Every check of a value is here, so loaded
settings are good.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import quote, urlunsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from streameval.base.durations import Duration, format_duration, parse_duration
from streameval.base.errors import ConfigError
from streameval.base.limits import (
    MAX_BATCH_EVENTS,
    MAX_BATCH_INTERVAL,
    MAX_BATCH_USERS,
    MAX_EXPERIMENTS,
    MAX_GAIN,
    MAX_K,
    MAX_KS,
    MAX_PANES,
    MAX_POSITIVES,
    MAX_READ_MEMORY,
    MAX_SEGMENTS,
    MAX_WINDOWS,
    MIN_READ_MEMORY,
    READ_MEMORY,
)
from streameval.base.urls import split_url
from streameval.config import places
from streameval.config.experiments import ExperimentSettings, check_experiments, event_field
from streameval.config.figure_settings import (
    LONGEST,
    Gain,
    Integer,
    Label,
    PositiveSettings,
    WindowSettings,
)
from streameval.core.definition import (
    DEFAULT_WINDOWS,
    MAX_DIMENSIONS,
    OPTIONAL_FIGURES,
    Definition,
    Window,
)
from streameval.core.events import EventDecoder

PREFIX: Final = "STREAMEVAL_"
"""The beginning of an environment variable's name."""

DEFAULT_TOPIC: Final = "recsys-events"
SECRETS: Final = (
    *("kafka_password", "redis", "redis_password", "registry_password", "registry_token"),
    *("pseudonymize", "user_token"),
)
"""The keys that may also stand in a file; no output contains them."""
ALIKE: Final = (
    *("experiments", "profile", "registry", "dead_letter_topic", "user_ttl"),
    *("outcomes", "outcome_keep", "snapshots", "checks", "pseudonymize"),
)
"""The keys that all workers of a group need alike, beside the definition of the figures.

State under another definition is refused. Of these keys nothing else would tell that they differ.
"""

Name = Annotated[str, AfterValidator(places.name)]


def _distinct(key: str, values: Sequence[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{key}: {value!r} stands there twice")


class _SecretFiles(PydanticBaseSettingsSource):
    """Secrets from files: `STREAMEVAL_REDIS_PASSWORD_FILE` names a file that holds the password."""

    def __call__(self) -> dict[str, Any]:
        found = {}
        for key, field in self.settings_cls.model_fields.items():
            value, _, _ = self.get_field_value(field, key)
            if value is not None:
                found[key] = value
        return found

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the file's text without its last newline, for a secret that has a file."""
        del field
        variable = f"{PREFIX}{field_name.upper()}_FILE"
        path = os.environ.get(variable)
        if not path or field_name not in SECRETS:
            return None, field_name, False
        if os.environ.get(variable.removesuffix("_FILE")):
            raise ConfigError(f"{variable}: {field_name} is also given directly: drop one of them")
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
            return text.removesuffix("\n"), field_name, False
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{variable}: cannot read {path!r}: {error}") from error


class ForwardSettings(BaseModel):
    """One topic to forward, and the profile of its messages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: Name
    profile: str = Field(min_length=1)


class Settings(BaseSettings):
    """Every key, with the description in docs/configuration.md. Durations are in ms."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        validate_default=False,  # defaults are in ms already, as after parsing
    )

    # The meaning of the figures
    positives: tuple[PositiveSettings, ...] = Field(
        (PositiveSettings(kind="click"), PositiveSettings(kind="like")),
        min_length=1,
        max_length=MAX_POSITIVES,
        description="Kinds of feedback that count as success, each `kind`, `kind>=value`,"
        " `kind>value`, or `{kind: purchase, value: sum, cap: 500}`: `value` is one of none, last,"
        " sum, max; `cap`, `threshold` (from it on) and `above` are optional.",
    )
    gains: dict[Label, Gain] = Field(
        {},
        description=f"The gain of a kind in graded relevance, 0 to {MAX_GAIN:g}; 1 for kinds not"
        " named here.",
    )
    ndcg_gain: Literal["linear", "exponential"] = Field(
        "linear", description="Whether a gain g counts as g or as 2^g - 1 in NDCG."
    )
    dimensions: tuple[Annotated[str, AfterValidator(event_field)], ...] = Field(
        ("variant",),
        max_length=MAX_DIMENSIONS,
        description="Text fields of impressions and slates that split the figures into segments;"
        " empty for none. With two or more there are also figures over all values of each,"
        " `__all__`.",
    )
    max_segments: Integer = Field(
        200,
        ge=1,
        le=MAX_SEGMENTS,
        description="Segments of a partition at a time; more are `__other__`.",
    )
    ks: tuple[Annotated[Integer, Field(ge=1, le=MAX_K)], ...] = Field(
        (5, 10),
        min_length=1,
        max_length=MAX_KS,
        description=f"Cutoffs of the ranking metrics, rising, 1 to {MAX_K}.",
    )
    figures: tuple[Literal["lists", "nowcast"], ...] = Field(
        OPTIONAL_FIGURES,
        description="Figures beside rates, values and ranking metrics: health and ranks of the"
        " `lists`, and `nowcast`. What is left out takes no time.",
    )
    windows: tuple[WindowSettings, ...] = Field(
        tuple(
            WindowSettings.model_validate(
                {"size": window.name, "slide": format_duration(window.slide)}
            )
            for window in DEFAULT_WINDOWS
        ),
        min_length=1,
        max_length=MAX_WINDOWS,
        description=f"Sliding windows; a slide divides its size, into at most {MAX_PANES} panes.",
    )
    attribution_window: Annotated[int, Duration("1ms", LONGEST)] = Field(
        1_800_000, description="Feedback counts for this long after its slate."
    )
    allowed_lateness: Annotated[int, Duration("0", LONGEST)] = Field(
        60_000,
        description="How far an event may lie behind the newest; at most attribution_window.",
    )
    max_clock_skew: Annotated[int, Duration("0", LONGEST)] = Field(
        60_000, description="How far an event's time may lie ahead of its record's."
    )

    # Experiments
    experiments: tuple[ExperimentSettings, ...] = Field(
        (),
        max_length=MAX_EXPERIMENTS,
        description="Comparisons of arms, each `{name: ranker-v2, arm: variant, control: A,"
        " primary: ndcg@10}` and [more](experiments.md). The state goes on when"
        " one is added or removed.",
    )

    # Kafka
    kafka: Annotated[str, AfterValidator(places.servers)] = Field(
        "127.0.0.1:9092", description="Bootstrap servers, host:port, separated by commas."
    )
    topic: Name = Field(DEFAULT_TOPIC, description="The topic of events, keyed by user_id.")
    group: Name = Field(
        "streameval", description="The consumer group: workers that share it share the work."
    )
    profile: str | None = Field(
        None,
        min_length=1,
        description="The profile of the messages: a built-in one (`streameval profiles`), or the"
        " path of your own; null: events of streameval.",
    )
    forward: tuple[ForwardSettings, ...] = Field(
        (),
        description="Topics that `streameval forward` reads, each `{topic: clicks, profile:"
        " segment}`: it writes their events to `topic`, keyed by user.",
    )
    registry: Annotated[str, AfterValidator(places.web_addresses)] | None = Field(
        None,
        description="The schema registry (URLs of Confluent's API, with commas), which is"
        " asked for the schemas of framed messages in Avro, Protobuf and JSON; needs `profile`.",
    )
    registry_username: str | None = Field(None, description="The registry's user, if it asks.")
    registry_password: SecretStr | None = Field(None, description="The registry's password.")
    registry_token: SecretStr | None = Field(
        None, description="The registry's bearer token, in place of a user."
    )
    registry_ca_file: Annotated[Path, AfterValidator(places.file)] | None = Field(
        None, description="Certificates that sign the registry's (PEM); without it, the system's."
    )
    registry_cert_file: Annotated[Path, AfterValidator(places.file)] | None = Field(
        None, description="This worker's certificate (PEM), where the registry wants one."
    )
    registry_key_file: Annotated[Path, AfterValidator(places.file)] | None = Field(
        None, description="The key of that certificate (PEM), if it is in another file."
    )
    dead_letter_topic: Name = Field(
        f"{DEFAULT_TOPIC}.dead-letter",
        description="The topic of rejected events; by default `topic` with `.dead-letter`.",
    )
    start_from: Literal["earliest", "latest"] = Field(
        "earliest", description="The first record to read in a partition without a stored offset."
    )
    read_memory: Integer = Field(
        READ_MEMORY,
        ge=MIN_READ_MEMORY,
        le=MAX_READ_MEMORY,
        description="Bytes of memory for fetched and unpacked records that are not applied yet, all"
        " partitions together; a batch may have 7/16 of it, unpacked.",
    )
    session_timeout: Annotated[int, Duration("1s", "30m")] = Field(
        10_000,
        description="A worker that is silent for this long loses its partitions to the others.",
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="The protocol of Kafka's listener."
    )
    kafka_sasl_mechanism: Literal[
        "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"
    ] = Field("SCRAM-SHA-512", description="The way to log in, with a SASL protocol.")
    kafka_username: str | None = Field(None, description="Kafka's user, with a SASL protocol.")
    kafka_password: SecretStr | None = Field(
        None, description="Kafka's password, with a SASL protocol."
    )
    kafka_token_file: Path | None = Field(
        None, description="File with the token of OAUTHBEARER, read by each connection."
    )
    kafka_token_command: tuple[str, ...] = Field(
        (),
        description="Command that prints the token of OAUTHBEARER, alone or as `access_token` in"
        " JSON, in place of a file.",
    )
    kafka_kerberos_service: str = Field(
        "kafka", description="The name of the brokers' principal in Kerberos, with GSSAPI."
    )
    kafka_instance_id: Name | None = Field(
        None,
        description="A name for this worker alone: one that comes back within `session_timeout` has"
        " its partitions again without a rebalance.",
    )
    kafka_rack: str | None = Field(
        None,
        description=(
            "This worker's rack or zone: fetches from a replica there, where the brokers have a"
            " rack-aware `replica.selector.class`."
        ),
    )
    kafka_ca_file: Annotated[Path, AfterValidator(places.file)] | None = Field(
        None, description="Certificates that sign Kafka's (PEM); without it, the system's."
    )
    kafka_check_hostname: bool = Field(
        default=True,
        description="Whether a broker's certificate must name its host; `ssl.endpoint."
        "identification.algorithm` of Java's clients.",
    )
    kafka_cert_file: Annotated[Path, AfterValidator(places.file)] | None = Field(
        None, description="This worker's certificate (PEM), where Kafka wants one."
    )
    kafka_key_file: Annotated[Path, AfterValidator(places.file)] | None = Field(
        None, description="The key of that certificate (PEM), if it is in another file."
    )

    # Redis
    redis: Annotated[SecretStr, AfterValidator(places.redis_url)] = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        description="Redis' URL with the number of the database, `rediss://` for TLS,"
        " `redis://USER@HOST` for an ACL user; `redis+cluster://HOST:PORT,HOST:PORT` and"
        " `redis+sentinel://HOST:PORT,HOST:PORT/NAME` for [several](operations.md#redis).",
    )
    redis_password: SecretStr | None = Field(
        None, description="Redis' password, if the URL has none."
    )
    user_ttl: Annotated[int | None, Duration("1m", "3660d")] = Field(
        None, description="Time that a user's counters outlive their last change; null: for ever."
    )

    # The worker
    batch_interval: Annotated[int, Duration("10ms", format_duration(MAX_BATCH_INTERVAL))] = Field(
        MAX_BATCH_INTERVAL, description="A batch is committed after this time at the latest."
    )
    batch_events: Integer = Field(
        MAX_BATCH_EVENTS, ge=1, le=MAX_BATCH_EVENTS, description="Events of a batch, at most."
    )
    batch_users: Integer = Field(
        MAX_BATCH_USERS, ge=1, le=MAX_BATCH_USERS, description="Users a batch touches, about."
    )
    checkpoint_interval: Annotated[int, Duration("1s", "1h")] = Field(
        30_000, description="Time between checkpoints; a restart reads that much again."
    )
    tick: Annotated[int, Duration("100ms", "1m")] = Field(
        1_000, description="Least time between two ticks: each commits and computes the figures."
    )
    shutdown_deadline: Annotated[int, Duration("1s", "15s")] = Field(
        12_000, description="Longest time that a worker takes to stop, also while servers are down."
    )

    # Files
    outcomes: str | None = Field(
        None,
        min_length=1,
        description="Folder or URI (`s3://…`, `gs://…`) of the outcome files; null: none.",
    )
    outcome_keep: Annotated[int, Duration("35d", "3660d")] | None = Field(
        None,
        description="Age at which the leader removes outcome files, when it takes a snapshot; it"
        " keeps what checks, windows and configured experiments (from their `since` on) still need;"
        " null: they stay for ever.",
    )
    snapshots: (
        Annotated[Path, BeforeValidator(places.on_disk), AfterValidator(places.folder)] | None
    ) = Field(
        None,
        description="Folder of the snapshots, outside of `outcomes`; null: none are taken.",
    )
    snapshot_interval: Annotated[int, Duration("10s", "366d")] = Field(
        900_000, description="Time between snapshots, taken by the leader of the workers."
    )
    snapshot_keep: Integer = Field(
        96, ge=1, le=1_000_000, description="Snapshots to keep; the oldest go."
    )
    checks: Annotated[Path, AfterValidator(places.file)] | None = Field(
        None,
        description="YAML file of the checks that follow each snapshot (`streameval check"
        " --schema`); needs `snapshots` and `outcomes`; null: no checks.",
    )
    pseudonymize: SecretStr | None = Field(
        None,
        min_length=8,
        description="A key: files then hold HMAC-SHA256 names in place of user ids.",
    )

    # Web page and log
    listen: Annotated[str, BeforeValidator(places.port_alone), AfterValidator(places.address)] = (
        Field(
            "127.0.0.1:8080",
            description="The address of the pages and /metrics; port 0: any free port.",
        )
    )
    public_url: Annotated[str, AfterValidator(places.web_address)] | None = Field(
        None,
        description="The address at which people reach the pages of a worker, such as"
        " `https://metrics.example/streameval`: alerts link to its `/runbook`; null: `listen`.",
    )
    allowed_hosts: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="Names by which people and scrapers ask for the pages, besides localhost,"
        " addresses and this machine's own name: `metrics.example`, `.example` for all below it.",
    )
    user_token: SecretStr | None = Field(
        None,
        min_length=16,
        description="The token that [`/api/v1/users/ID`](api.md#users) asks for; null: nobody may"
        " ask for a user.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level that is logged."
    )
    log_format: Literal["text", "json"] = Field("text", description="Lines for people, or JSON.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: environment, secrets in files, then the caller's values."""
        del dotenv_settings, file_secret_settings
        return env_settings, _SecretFiles(settings_cls), init_settings

    @model_validator(mode="before")
    @classmethod
    def _dead_letters_beside_topic(cls, given: dict[str, Any]) -> dict[str, Any]:
        if "topic" in given and "dead_letter_topic" not in given:
            return {**given, "dead_letter_topic": f"{given['topic']}.dead-letter"}
        return given

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Check relations of keys; each message names the key to change."""
        kinds = [positive.kind for positive in self.positives]
        _distinct("positives", kinds)
        for kind in self.gains.keys() - set(kinds):
            raise ValueError(f"gains: {kind!r} is not in positives, so nothing would gain by it")
        _distinct("dimensions", [name.lower() for name in self.dimensions])
        _distinct("windows", [window.size for window in self.windows])
        _distinct("figures", self.figures)
        if list(self.ks) != sorted(set(self.ks)):
            raise ValueError(f"ks: write them rising and once each, not {list(self.ks)}")
        if self.allowed_lateness > self.attribution_window:
            raise ValueError(
                f"allowed_lateness: {format_duration(self.allowed_lateness)} is more than "
                f"attribution_window, {format_duration(self.attribution_window)}"
            )
        if self.dead_letter_topic == self.topic:
            raise ValueError("dead_letter_topic: must not be the topic that is read")
        if (
            self.snapshots
            and self.outcomes
            and self.snapshots.resolve().is_relative_to(
                Path(self.outcomes.removeprefix("file://")).resolve()
            )
        ):
            raise ValueError(
                "snapshots: name a folder outside of `outcomes`: each Parquet file there is taken"
                " for outcomes"
            )
        if self.checks and not (self.snapshots and self.outcomes):
            raise ValueError("checks: set snapshots and outcomes too, which the checks need")
        if self.outcome_keep and not (self.snapshots and self.outcomes):
            raise ValueError("outcome_keep: set outcomes, and snapshots, with which old files go")
        if self.experiments:
            check_experiments(self.definition())
        return self

    @model_validator(mode="after")
    def _can_log_in_to_kafka(self) -> Self:
        sasl = self.kafka_security_protocol.startswith("SASL")
        by_name = self.kafka_sasl_mechanism not in {"OAUTHBEARER", "GSSAPI"}
        token = bool(self.kafka_token_file), bool(self.kafka_token_command)
        if sasl and self.kafka_sasl_mechanism == "OAUTHBEARER":
            if sum(token) != 1:
                raise ValueError(
                    "kafka_token_file, kafka_token_command: OAUTHBEARER needs one of them"
                )
        elif sasl and by_name and not (self.kafka_username and self.kafka_password):
            raise ValueError("kafka_username, kafka_password: a SASL protocol needs both")
        elif any(token):
            raise ValueError("kafka_sasl_mechanism: a token needs OAUTHBEARER and a SASL protocol")
        if self.kafka_password and not sasl:
            raise ValueError(
                "kafka_security_protocol: a password needs SASL_SSL (or SASL_PLAINTEXT)"
            )
        if self.kafka_key_file and not self.kafka_cert_file:
            raise ValueError("kafka_cert_file: set it too, or drop kafka_key_file")
        if self.kafka_cert_file and not self.kafka_security_protocol.endswith("SSL"):
            raise ValueError("kafka_security_protocol: a certificate needs SSL or SASL_SSL")
        return self

    @model_validator(mode="after")
    def _can_ask_the_registry(self) -> Self:
        if (self.registry_username is None) != (self.registry_password is None):
            raise ValueError("registry_username, registry_password: a login needs both")
        if self.registry_username and self.registry_token:
            raise ValueError("registry_token: drop it, or the user")
        if self.registry_key_file and not self.registry_cert_file:
            raise ValueError("registry_cert_file: set it too, or drop registry_key_file")
        if self.registry and not (self.profile or self.forward):
            raise ValueError(
                "registry: set profile too, to `native` for messages that are streameval's events"
            )
        return self

    @model_validator(mode="after")
    def _has_profiles(self) -> Self:
        named = [("profile", self.profile)] if self.profile is not None else []
        named += [("forward", source.profile) for source in self.forward]
        if not named:
            return self
        for key, profile in named:
            try:
                self.decoder_by(profile)
            except ConfigError as error:
                raise ValueError(f"{key}: {error}") from None
        _distinct("forward", [source.topic for source in self.forward])
        for key in ("topic", "dead_letter_topic"):
            if (written := getattr(self, key)) in {source.topic for source in self.forward}:
                raise ValueError(f"forward: {written} is `{key}`, which it writes to")
        return self

    @property
    def owner(self) -> dict[str, str]:
        """The owner of the files that this deployment writes."""
        return {"group": self.group, "topic": self.topic}

    def digests(self) -> dict[str, str]:
        """Return by key of `ALIKE` a digest of its value, or of the file that it names.

        Digests have 16 bits: many secrets have the same one, and nobody can guess by it.
        """
        values = self.model_dump(mode="json", include=set(ALIKE))
        values["pseudonymize"] = self.secret("pseudonymize")
        for key in ("profile", "checks"):
            if values[key] is not None and Path(values[key]).is_file():
                values[key] = Path(values[key]).read_text(encoding="utf-8", errors="replace")
        contents = {key: json.dumps(values[key]).encode() for key in ALIKE}
        return {key: hashlib.sha256(text).hexdigest()[:4] for key, text in contents.items()}

    def decoder(self) -> EventDecoder:
        """Return the decoder of the topic's messages. Raises ConfigError for a wrong profile."""
        if self.profile is None:
            return EventDecoder.of(self.definition())
        return self.decoder_by(self.profile)

    def decoder_by(self, profile: str) -> EventDecoder:
        """Return the decoder of messages of a profile. Raises ConfigError for a wrong one."""
        # Only who has other messages pays for the language.
        from streameval.profiles.library import decoder_of
        from streameval.profiles.registry import Registry, basic

        def login() -> str:
            if self.registry_username is not None:
                return basic(self.registry_username, self.secret("registry_password"))
            token = self.secret("registry_token")
            return f"Bearer {token}" if token else ""

        registry = None
        if self.registry is not None:
            registry = Registry(
                self.registry,
                login,
                ca_file=self.registry_ca_file,
                cert_file=self.registry_cert_file,
                key_file=self.registry_key_file,
            )
        return decoder_of(self.definition(), profile, registry)

    def secret(self, key: str) -> str:
        """Return a secret as it is now, "" for none: its file is read again.

        A file that is away for a moment leaves the secret as it was.
        """
        with contextlib.suppress(ConfigError):
            value, _, _ = _SecretFiles(type(self)).get_field_value(FieldInfo(), key)
            if value is not None:
                return str(value)
        held: SecretStr | None = getattr(self, key)
        return "" if held is None else held.get_secret_value()

    def definition(self) -> Definition:
        """Return the definition of the figures: the part that the state depends on."""
        return Definition(
            positives=tuple(positive.definition() for positive in self.positives),
            gains=dict(self.gains),
            ndcg_gain=self.ndcg_gain,
            dimensions=self.dimensions,
            ks=self.ks,
            figures=tuple(name for name in OPTIONAL_FIGURES if name in self.figures),
            windows=tuple(
                Window(window.size, parse_duration(window.size), window.slide)
                for window in self.windows
            ),
            attribution_window=self.attribution_window,
            allowed_lateness=self.allowed_lateness,
            max_clock_skew=self.max_clock_skew,
            max_segments=self.max_segments,
            experiments=tuple(experiment.definition() for experiment in self.experiments),
        )

    def redis_url(self) -> str:
        """Return the URL with the password in it, as it is now: a secret, not to be logged."""
        url = split_url(self.secret("redis"))
        if self.redis_password is None:
            return url.geturl()
        user, _, _ = (url.username or "").partition(":")
        host = url.netloc.rpartition("@")[2]
        password = quote(self.secret("redis_password"), safe="")
        return urlunsplit(url._replace(netloc=f"{user}:{password}@{host}"))

    @property
    def pages_url(self) -> str:
        """The address at which people reach the pages."""
        return self.public_url or f"http://{self.listen}"

    @property
    def listen_host(self) -> str:
        """The host of `listen`, without the brackets of an IPv6 address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        """The port of `listen`; 0 asks the system for a free one."""
        return int(self.listen.rpartition(":")[2])

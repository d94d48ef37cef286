"""Tokens and tickets for Kafka: from a file, from a command, or why there is none."""

import asyncio
import sys

import pytest

from streameval.base import extras
from streameval.base.errors import ConfigError, InputError
from streameval.config.load import load
from streameval.kafka import aiokafka_internals
from streameval.kafka.connection_errors import TokenError, unreached_error
from streameval.kafka.security import client_arguments

KEYS = {"kafka_security_protocol": "SASL_PLAINTEXT", "kafka_sasl_mechanism": "OAUTHBEARER"}


def token(**keys):
    provider = client_arguments(load(None, KEYS | keys))["sasl_oauth_token_provider"]
    return asyncio.run(provider.token())


def printing(text):
    return [sys.executable, "-c", f"print({text!r})"]


def test_a_token_of_a_file_is_read_each_time(tmp_path):
    file = tmp_path / "token"
    for text in ("one", "two"):
        file.write_text(f"{text}\n")
        assert token(kafka_token_file=file) == text


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("abc.def.", "abc.def."),
        ('{"access_token": "abc", "expires_in": 900}', "abc"),
        ('{"token": "abc"}', "abc"),
        ("7", "7"),
    ],
)
def test_a_command_prints_a_token(printed, found):
    assert token(kafka_token_command=printing(printed)) == found


def test_connections_at_a_time_share_the_token_of_a_command(tmp_path):
    counted = f"open({str(tmp_path / 'asked')!r}, 'a').write('x'); print('abc')"
    settings = load(None, KEYS | {"kafka_token_command": [sys.executable, "-c", counted]})
    provider = client_arguments(settings)["sasl_oauth_token_provider"]

    async def several():
        return await asyncio.gather(*(provider.token() for _ in range(5)))

    assert asyncio.run(several()) == ["abc"] * 5
    assert (tmp_path / "asked").read_text() == "x"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"kafka_token_file": "/absent/token"}, "kafka_token_file: [Errno 2] No such file"),
        ({"kafka_token_command": ["/absent/command"]}, "kafka_token_command: [Errno 2] No such"),
        ({"kafka_token_command": printing("")}, "kafka_token_command ended with 0: no token"),
        ({"kafka_token_command": printing("{}")}, "kafka_token_command ended with 0: no token"),
        (
            {"kafka_token_command": [sys.executable, "-c", "raise SystemExit('expired')"]},
            "kafka_token_command ended with 1: expired",
        ),
    ],
)
def test_no_token_is_told(keys, said):
    with pytest.raises(TokenError) as told:
        token(**keys)
    assert str(told.value).startswith(said)
    line = str(unreached_error("k:9092", told.value))
    assert line.startswith(f"Kafka at k:9092 is not asked, for want of a token: {said}")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (KEYS, "kafka_token_file, kafka_token_command: OAUTHBEARER needs one of them"),
        (KEYS | {"kafka_token_file": "a", "kafka_token_command": ["b"]}, "OAUTHBEARER needs one"),
        ({"kafka_token_file": "a"}, "kafka_sasl_mechanism: a token needs OAUTHBEARER"),
        ({"kafka_key_file": __file__}, "kafka_cert_file: set it too"),
        ({"kafka_cert_file": __file__}, "kafka_security_protocol: a certificate needs SSL"),
    ],
)
def test_keys_that_do_not_agree_are_told(keys, said):
    with pytest.raises(ConfigError) as told:
        load(None, keys)
    assert said in str(told.value)


KERBEROS = {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "GSSAPI"}


def test_kerberos_needs_its_package_and_no_password(monkeypatch):
    monkeypatch.setattr(extras, "is_installed", lambda _: False)
    with pytest.raises(InputError, match=r"GSSAPI needs gssapi, .* pip install .*\[kerberos\]"):
        client_arguments(load(None, KERBEROS))
    monkeypatch.setattr(extras, "is_installed", lambda package: package == "gssapi")
    arguments = client_arguments(load(None, KERBEROS | {"kafka_kerberos_service": "broker"}))
    assert arguments["sasl_mechanism"] == "GSSAPI"
    assert arguments["sasl_kerberos_service_name"] == "broker"
    assert "sasl_plain_username" not in arguments


@pytest.mark.parametrize(
    ("module", "wanted"), [("gssapi.raw.misc", TokenError), ("elsewhere", RuntimeError)]
)
def test_a_ticket_that_is_not_there_is_told_as_a_token(monkeypatch, module, wanted):
    """To aiokafka such an error is none of a connection."""
    kind = type("Gone", (RuntimeError,), {"__module__": module})

    async def connect(*_):
        raise kind("no credentials")

    monkeypatch.setattr(aiokafka_internals, "_create_conn", connect)
    with pytest.raises(wanted, match="no credentials"):
        asyncio.run(aiokafka_internals._connect("kafka", 9092))


@pytest.mark.parametrize("key", ["kafka_ca_file", "kafka_cert_file"])
def test_a_file_without_certificates_is_told(key):
    settings = load(None, {"kafka_security_protocol": "SSL", key: __file__})
    with pytest.raises(ConfigError) as told:
        client_arguments(settings)
    assert "no certificates in PEM" in str(told.value)

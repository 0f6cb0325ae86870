"""The controller's command line: what it means, and what it says about mistakes."""

from pathlib import Path

import pytest

from controller.settings import Listen, Role, StoreKind, parse_settings


def test_data_alone_means_every_role_on_the_default_port(tmp_path: Path):
    settings = parse_settings(["--data", str(tmp_path)])
    assert settings.listen == Listen("127.0.0.1", 7070)
    assert settings.roles == frozenset(Role)
    assert (settings.store.kind, settings.store.data_dir) == (StoreKind.SQLITE, tmp_path)
    assert settings.api_url is None


def test_a_role_of_its_own_names_the_api_it_uses():
    settings = parse_settings(["--roles", "gateway", "--api", "http://h:7070/"])
    assert (settings.roles, settings.api_url) == (frozenset({Role.GATEWAY}), "http://h:7070")


def test_the_gateway_may_be_closed_before_the_first_key():
    assert not parse_settings(["--store", "memory"]).gateway.require_key
    assert parse_settings(["--store", "memory", "--require-key"]).gateway.require_key


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("0.0.0.0:0", Listen("0.0.0.0", 0)),
        (":7070", Listen("127.0.0.1", 7070)),
        ("[::1]:7070", Listen("::1", 7070)),
    ],
)
def test_addresses_are_host_and_port(text, listen):
    assert parse_settings(["--listen", text, "--store", "memory"]).listen == listen


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--roles", "gateway"], "--api URL"),
        (["--roles", "api,web", "--data", "x"], "unknown role 'web'"),
        (["--roles", ",", "--data", "x"], "no role given"),
        ([], "--data DIR"),
        (["--store", "memory", "--data", "x"], "keeps nothing"),
        (["--listen", "7070", "--data", "x"], "HOST:PORT"),
        (["--listen", "h:99999", "--data", "x"], "HOST:PORT"),
        (["--listen", "::1:7070", "--data", "x"], "in brackets"),
        (["--api", "http://h:1", "--data", "x"], "leave it out"),
        (["--roles", "gateway", "--api", "h:1"], "http://HOST:PORT"),
        (["--colour", "--data", "x"], "unrecognized"),
        (["--data", "x", "--workers", "2"], "--roles gateway"),
        (["--roles", "gateway", "--api", "http://h:1", "--workers", "0"], "from 1"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(arguments, words, capsys):
    with pytest.raises(SystemExit) as left:
        parse_settings(arguments)
    assert left.value.code == 2
    assert words in capsys.readouterr().err

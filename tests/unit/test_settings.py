"""What the hub is told from outside, and what it says about what it cannot use."""

import subprocess
import sys

import pytest

from hub.settings import Settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(f"HUB_{name.upper()}", raising=False)


def test_without_any_setting_it_serves_on_loopback_with_a_database_of_its_own():
    settings = Settings()
    assert (settings.host, settings.database_url, settings.install_webhooks) == ("127.0.0.1", None, False)


def test_settings_come_from_the_environment_and_the_database_url_is_not_printed(monkeypatch):
    monkeypatch.setenv("HUB_DATABASE_URL", "postgresql://hub:secret@db/hub")
    monkeypatch.setenv("HUB_LOST_TIMEOUT_S", "60")
    settings = Settings()
    assert settings.lost_timeout_s == 60
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value", "want_words"),
    [
        ("HUB_PORT", "http", "HUB_PORT: Input should be a valid integer"),
        ("HUB_SUSPECT_AFTER", "0", "HUB_SUSPECT_AFTER: Input should be greater than or equal to 1"),
        ("HUB_LOG_LEVEL", "LOUD", "HUB_LOG_LEVEL: Input should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
    ],
    ids=["not a number", "out of range", "not a word that it knows"],
)
def test_a_bad_setting_ends_the_hub_with_its_name(name, value, want_words):
    ended = subprocess.run(
        [sys.executable, "-m", "hub.app"], env={name: value}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert want_words in ended.stderr
    assert "Traceback" not in ended.stderr

"""Where hubctl finds the hub: options, then environment, then the configuration file.

# ~/.config/hubctl/config.yaml
current: prod
contexts:
  prod: {server: https://hub.example.com, tokenFile: ~/.config/hubctl/prod.token, caFile: ~/.config/hubctl/prod.ca}
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hub.cli.http import Hub


class ConfigError(Exception):
    """The configuration does not say where the hub is, or names a file that cannot be read."""


def hub_from(options: Namespace, environment: Mapping[str, str]) -> Hub:
    """Raises ConfigError."""
    context = _context(options.context, environment)
    server = options.server or environment.get("HUBCTL_SERVER") or context.get("server")
    if not server:
        raise ConfigError("where is the hub? Give --server URL, set HUBCTL_SERVER, or write " + str(_file(environment)))
    if not server.startswith(("http://", "https://")):
        raise ConfigError(f"--server {server!r}: must begin with http:// or https://")
    token_file = options.token_file or environment.get("HUBCTL_TOKEN_FILE") or context.get("tokenFile")
    ca_file = options.ca_file or environment.get("HUBCTL_CA_FILE") or context.get("caFile")
    token = environment.get("HUBCTL_TOKEN") or _read(token_file, "token file")
    return Hub(server=server, token=token.strip(), ca_pem=_read(ca_file, "CA file"))


def _file(environment: Mapping[str, str]) -> Path:
    if named := environment.get("HUBCTL_CONFIG"):
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base, "hubctl", "config.yaml")


def _context(name: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    path = _file(environment)
    if not path.exists():
        if name:
            raise ConfigError(f"--context {name}: there is no {path}")
        return {}
    import yaml

    try:
        document = yaml.safe_load(path.read_text()) or {}
        contexts = dict(document.get("contexts") or {})
        wanted = str(name or document.get("current") or "")
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if wanted and not isinstance(contexts.get(wanted), dict):
        raise ConfigError(f"{path} has no context {wanted!r}; it has {', '.join(contexts) or 'none'}")
    return contexts[wanted] if wanted else {}


def _read(path: str | None, what: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).expanduser().read_text()
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None

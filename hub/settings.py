"""What the hub is told from outside: environment variables with the prefix HUB_. Nobody else reads environment or files."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HUB_", frozen=True, extra="ignore")

    #: postgresql://... of any server. None: an embedded one, in `data_dir`.
    database_url: SecretStr | None = None
    #: Keys and certificates of the hub (0600), and the embedded database.
    data_dir: Path = Path("hub-data")
    #: Kubeconfig of the management cluster. None: the pod's service account.
    management_kubeconfig: Path | None = None
    #: REST, pages and joins. Without a certificate plain HTTP is served on loopback only.
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    #: Address that agents and people use; by default the one that is served.
    public_url: str = ""
    #: CA of that address, handed to people who register clusters.
    public_ca_file: Path | None = None
    #: Admission webhooks of the management cluster, always over TLS.
    webhook_host: str = "127.0.0.1"
    webhook_port: int = Field(default=8443, ge=0, le=65535)
    #: Write the webhook configurations to the management cluster at the start.
    install_webhooks: bool = False
    #: Value of the origin label on workers; must be every agent's.
    origin: str = "multikueue"
    #: How long an agent may wait for news: capacity is at most so old.
    poll_wait_s: float = Field(default=1.0, gt=0, le=25)
    #: How long an agent's answer may take beyond that.
    poll_answer_s: float = Field(default=10.0, gt=0)
    #: Failed polls in a row after which a cluster is suspected, and how long it may be silent before it is lost.
    suspect_after: int = Field(default=3, ge=1)
    lost_timeout_s: float = Field(default=900.0, gt=0)
    #: What a lost cluster's work does, unless its ClusterQueue or itself says otherwise (annotation multikueue-hub.io/lost-policy).
    lost_policy: Literal["Wait", "FenceThenMove", "MoveNow"] = "Wait"
    #: Life of the leader's lease: how long a fail-over takes at most.
    leader_lease_s: float = Field(default=8.0, ge=1)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_json: bool = False

"""What the agent is told from outside: environment variables with the prefix AGENT_."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints
from pydantic_settings import BaseSettings, SettingsConfigDict

DnsLabel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="AGENT_", frozen=True, extra="ignore")

    #: Name under which the cluster was registered.
    name: DnsLabel
    #: Where to join, e.g. https://hub.example.com:8443.
    hub_url: str
    #: CA of that address when it is not a public one.
    hub_ca_file: Path | None = None
    #: The one-time token that `hubctl clusters register` gave. Needed until the first join succeeds.
    join_token_file: Path | None = None
    #: None: the pod's service account.
    kubeconfig: Path | None = None
    #: Where the polls are served.
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    #: Address that the hub shall use; by default the one that is served.
    advertise_address: str = ""
    #: The agent's own key and certificate and the hub's CA: 0600, made when missing.
    state_dir: Path
    #: Value of the origin label; must be the hub's.
    origin: str = "multikueue"
    create_namespaces: bool = False
    create_local_queues: bool = False
    #: ClusterQueue for LocalQueues that the agent creates, unless one is named like the manager's.
    default_cluster_queue: str = ""
    #: How long local admission may leave a copy undecided before it is refused.
    admit_within_s: float = Field(default=60.0, gt=0)
    log_level: str = "INFO"
    log_json: bool = False

"""The part of the bundle format that the workbench understands, as strict models.

The names are those of the format (github.com/databricks/cli, bundle/schema/jsonschema.json). Any other
key is an error, also if Databricks accepts it, since it would have no effect here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PauseStatus = Literal["PAUSED", "UNPAUSED"]
RunIf = Literal[
    "ALL_SUCCESS", "ALL_DONE", "NONE_FAILED", "AT_LEAST_ONE_SUCCESS", "ALL_FAILED", "AT_LEAST_ONE_FAILED"
]
Key = Annotated[str, Field(pattern=r"^[\w-]{1,100}$")]
NotNegative = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """Base of every part of the format: it refuses unknown keys, and converts no values."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CronSchedule(Part):
    """`schedule`: a Quartz expression, read in a time zone."""

    quartz_cron_expression: str
    timezone_id: str
    pause_status: PauseStatus = "UNPAUSED"


class PeriodicTrigger(Part):
    """`trigger.periodic`: once in a number of minutes, hours, days or weeks."""

    interval: Annotated[int, Field(ge=1)]
    unit: Literal["MINUTES", "HOURS", "DAYS", "WEEKS"]


class TriggerSettings(Part):
    """`trigger`; of its kinds, only `periodic` has a meaning on a laptop."""

    periodic: PeriodicTrigger
    pause_status: PauseStatus = "UNPAUSED"


class Continuous(Part):
    """`continuous`: there is always one run."""

    pause_status: PauseStatus = "UNPAUSED"


class JobParameter(Part):
    """One of `parameters`."""

    name: str
    default: str


class Webhook(Part):
    """A notification destination, by its id."""

    id: str


class WebhookNotifications(Part):
    """`webhook_notifications` of a job."""

    on_start: list[Webhook] = []
    on_success: list[Webhook] = []
    on_failure: list[Webhook] = []


class NotebookTask(Part):
    """`notebook_task`: a file, relative to the file that names it."""

    notebook_path: str
    base_parameters: dict[str, str] = {}
    source: Literal["WORKSPACE"] = "WORKSPACE"


class TaskDependency(Part):
    """One of `depends_on`."""

    task_key: str


class Task(Part):
    """One of `tasks`; its compute and libraries are for Databricks, a laptop has one machine."""

    task_key: Key
    notebook_task: NotebookTask
    description: str = ""
    depends_on: list[TaskDependency] = []
    run_if: RunIf = "ALL_SUCCESS"
    existing_cluster_id: str = ""
    job_cluster_key: str = ""
    environment_key: str = ""
    libraries: list[dict[str, Any]] = []
    max_retries: Annotated[int, Field(ge=-1)] = 0
    min_retry_interval_millis: NotNegative = 0
    retry_on_timeout: bool = False
    timeout_seconds: NotNegative = 0

    @property
    def upstream(self) -> list[str]:
        """The tasks that this one waits for."""
        return [dependency.task_key for dependency in self.depends_on]


class JobCluster(Part):
    """One of `job_clusters`."""

    job_cluster_key: Key
    new_cluster: Any


class JobEnvironment(Part):
    """One of `environments`, for serverless tasks."""

    environment_key: Key
    spec: dict[str, Any]


class Job(Part):
    """One of `resources.jobs`."""

    name: str = ""
    description: str = ""
    tags: dict[str, str] = {}
    parameters: list[JobParameter] = []
    job_clusters: list[JobCluster] = []
    environments: list[JobEnvironment] = []
    tasks: Annotated[list[Task], Field(min_length=1)]
    max_concurrent_runs: Annotated[int, Field(ge=1, le=1000)] = 1
    timeout_seconds: NotNegative = 0
    schedule: CronSchedule | None = None
    trigger: TriggerSettings | None = None
    continuous: Continuous | None = None
    webhook_notifications: WebhookNotifications = WebhookNotifications()

    @property
    def defaults(self) -> dict[str, str]:
        """The job's parameters with their defaults."""
        return {parameter.name: parameter.default for parameter in self.parameters}


class Lookup(Part):
    """A variable that Databricks looks up by a name; here it is empty."""

    cluster: str = ""
    service_principal: str = ""


class Variable(Part):
    """One of `variables`; a target may give its value plainly. A complex one is empty here."""

    description: str = ""
    type: Literal["complex"] | None = None
    default: Any = None
    lookup: Lookup | None = None


class Artifact(Part):
    """One of `artifacts`, for Databricks: a laptop runs the installed packages."""

    type: Literal["whl"]
    path: str = "."
    build: str = ""


class BundleName(Part):
    """`bundle`."""

    name: str


class Target(Part):
    """One of `targets`; rights and workspace are for Databricks."""

    default: bool = False
    mode: Literal["development", "production"] | None = None
    variables: dict[str, Any] = {}
    workspace: dict[str, str] = {}
    run_as: dict[str, str] = {}
    permissions: list[dict[str, str]] = []


class Resources(Part):
    """`resources`."""

    jobs: dict[Key, Job] = {}


class BundleFile(Part):
    """`databricks.yml`, or a file that it includes."""

    bundle: BundleName | None = None
    include: list[str] = []
    artifacts: dict[str, Artifact] = {}
    variables: dict[str, Variable] = {}
    targets: dict[str, Target | None] = {}
    resources: Resources = Resources()

"""`topiclake new`: a package of the user's own: transform, notebook, job, test, and a project file."""

from __future__ import annotations

import keyword
from importlib import resources, util
from pathlib import Path
from string import Template

from topiclake.config.load import pipeline_names, require_pipeline
from topiclake.errors import ConfigError
from workbench.host.files import write_all
from workbench.host.home import Home

#: The notebook of a package. Python looks into the notebook's folder first. So a notebook with the name of
#: the package would be imported in its place.
NOTEBOOK = "notebooks/{package}_ingest.py"
_HIDING_NOTEBOOK = "notebooks/{package}.py"
#: By template the file that it becomes.
_FILES = {
    "package.txt": "src/{package}/__init__.py",
    "rows.txt": "src/{package}/rows.py",
    "notebook.txt": NOTEBOOK,
    "job.txt": "conf/jobs/{package}.job.yml",
    "test.txt": "tests/test_{package}.py",
}


#: Written once. A project's own file, such as that of a clone, stays; it must find packages below `src/`.
_PROJECT = ("pyproject.txt", "pyproject.toml")

#: The pipelines that the project brings: no user's own.
EXAMPLES = frozenset(
    {"gps", "isp", "nest", "nest_locations", "shop", "shop_customers", "taxi", "taxi_delta", "wikimedia"}
)


def own_pipeline(home: Home) -> str:
    """Return the only pipeline of the project that is no example.

    Raises:
        ConfigError: None or several exist.
    """
    names = sorted({*pipeline_names(home.project / "conf")} - EXAMPLES)
    if len(names) != 1:
        raise ConfigError(
            f"the package needs one pipeline, and the project has {', '.join(names) or 'none'} of your own",
            "topiclake new <package> --pipeline <name>",
            reason="pipeline",
            allowed=tuple(names),
        )
    return names[0]


def create_package(home: Home, package: str, pipeline: str) -> list[Path]:
    """Write the files of a package that transforms the rows of a pipeline; return them.

    Raises:
        ConfigError: The name is taken or not allowed, or the pipeline does not exist; nothing is written.
        StorageError: A file cannot be written.
    """
    if not package.isidentifier() or keyword.iskeyword(package) or package != package.lower():
        raise ConfigError(
            f"{package!r} cannot be a package's name: lower-case letters, digits and '_' are allowed",
            "topiclake new my_orders --pipeline orders",
            package=package,
            reason="name",
        )
    conf = home.project / "conf"
    require_pipeline(pipeline, pipeline_names(conf), conf)
    files = {name: home.project / path.format(package=package) for name, path in _FILES.items()}
    hiding = home.project / _HIDING_NOTEBOOK.format(package=package)
    existing = [file for file in (*files.values(), hiding) if file.exists()]
    if existing or util.find_spec(package) is not None:
        raise ConfigError(
            f"the name {package} is taken: {existing[0] if existing else 'a package of this Python has it'}",
            "topiclake new with another name",
            package=package,
            reason="exists",
        )
    templates = resources.files("workbench") / "templates"
    values = {"package": package, "pipeline": pipeline, "notebook": NOTEBOOK.format(package=package)}
    if not (project := home.project / _PROJECT[1]).exists():
        files[_PROJECT[0]] = project
    texts = {
        file: Template((templates / name).read_text("utf-8")).substitute(values)
        for name, file in files.items()
    }
    write_all(texts)
    return list(texts)

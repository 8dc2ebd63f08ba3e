"""The package list, the links and the entry points agree with the tree."""

import importlib
import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dialects", "passes", "frontends", "backends", "tools")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_in_tree() -> set[str]:
    """Return the dotted name of every folder that holds Python files of the product."""
    folders = {file.parent for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    return {"tilewright"} | {".".join(("tilewright", *path.relative_to(ROOT).parts)) for path in folders}


def test_each_package_of_the_tree_is_listed() -> None:
    # A missing one works in an editable install and is absent from the wheel.
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == packages_in_tree()


def test_each_package_has_an_init_file() -> None:
    missing = [
        package
        for package in packages_in_tree() - {"tilewright"}
        if not (ROOT / package.removeprefix("tilewright.").replace(".", "/") / "__init__.py").is_file()
    ]
    assert missing == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_shell_links_to_each_folder_at_the_root(folder: str) -> None:
    link = ROOT / "src" / "tilewright" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{folder}"
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("package", sorted(packages_in_tree()))
def test_packages_are_imported_from_this_checkout(package: str) -> None:
    # An editable install serves its own checkout to every other one that uses its environment.
    file = importlib.import_module(package).__file__
    assert file is not None
    assert Path(file).resolve().is_relative_to(ROOT)


def entry_points() -> list[tuple[str, str]]:
    """Return each entry point of pyproject.toml: its name with its group, and its target."""
    project = PYPROJECT["project"]
    groups = {"scripts": project["scripts"], **project["entry-points"]}
    return [(f"{group}/{name}", target) for group, table in groups.items() for name, target in table.items()]


@pytest.mark.parametrize(("name", "target"), entry_points())
def test_entry_points_exist(name: str, target: str) -> None:
    module, attribute = target.split(":")
    assert hasattr(importlib.import_module(module), attribute), name

"""One name for a pass everywhere: in a pipeline, as a file, as its lit test."""

import importlib
import inspect
from pathlib import Path

import pytest
from xdsl.passes import ModulePass

from tilewright.passes import PASSES

ROOT = Path(__file__).resolve().parents[2]
OURS = {name: target for name, target in PASSES.items() if target.startswith("tilewright.")}


def pass_class(target: str) -> type[ModulePass]:
    """Return the class that an entry of the registry points at."""
    module, _, attribute = target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert inspect.isclass(found)
    assert issubclass(found, ModulePass)
    return found


@pytest.mark.parametrize(("name", "target"), PASSES.items())
def test_the_registry_points_at_a_pass_of_that_name(name: str, target: str) -> None:
    assert pass_class(target).name == name


@pytest.mark.parametrize(("name", "target"), OURS.items())
def test_the_file_has_the_name_of_its_pass(name: str, target: str) -> None:
    assert target.partition(":")[0] == "tilewright.passes." + name.replace("-", "_")


@pytest.mark.parametrize("name", OURS)
def test_the_pass_has_a_lit_test_of_its_name(name: str) -> None:
    assert (ROOT / "lit_tests" / "passes" / f"{name}.ir").is_file()


def test_each_lit_test_of_passes_has_the_name_of_a_pass() -> None:
    # `loop-tile-invalid.ir` and the like may stand beside `loop-tile.ir`.
    stray = [
        file.name
        for file in sorted((ROOT / "lit_tests" / "passes").rglob("*.ir"))
        if not any(file.stem == name or file.stem.startswith(f"{name}-") for name in PASSES)
    ]
    assert stray == []


def test_each_pass_is_registered() -> None:
    defined = {
        f"{module}:{name}"
        for file in (ROOT / "passes").rglob("*.py")
        for module in [".".join(("tilewright", *file.relative_to(ROOT).with_suffix("").parts))]
        for name, value in vars(importlib.import_module(module.removesuffix(".__init__"))).items()
        if inspect.isclass(value) and issubclass(value, ModulePass) and value.__module__ == module
    }
    assert defined == set(OURS.values())

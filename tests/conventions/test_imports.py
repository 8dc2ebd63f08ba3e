"""Who may import whom (docs/architecture: dialects, then passes, frontends and backends, then tools)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dialects", "passes", "frontends", "backends", "tools")


@dataclass(frozen=True)
class Rule:
    """What the modules of one part may import, beside the standard library and modules of the shell."""

    ours: tuple[str, ...]
    others: tuple[str, ...] = ("sympy", "typing_extensions", "xdsl")

    def and_also(self, *others: str) -> "Rule":
        """Return this rule with more packages that are not ours."""
        return Rule(self.ours, self.others + others)


BACKEND = Rule(("dialects", "passes", "backends"))
TOOL = Rule(FOLDERS)
RULES = {
    "": Rule((), ()),
    "dialects": Rule(("dialects",)),
    "passes": Rule(("dialects", "passes")),
    "frontends": Rule(("dialects", "frontends")).and_also("torch"),
    "backends": BACKEND,
    "backends.host": BACKEND.and_also("torch"),
    "backends.llvm": BACKEND.and_also("llvmlite"),
    "backends.reference": BACKEND.and_also("torch"),
    "backends.triton": BACKEND,
    "backends.triton.worker": Rule(()).and_also("triton"),
    "tools": TOOL,
    "tools.exported": TOOL.and_also("torch"),
    "tools.gen_aten_schemas": TOOL.and_also("torch"),
    "tools.import_exported": TOOL.and_also("torch"),
    "tools.torch_compile": TOOL.and_also("torch"),
}


def product_files() -> dict[str, Path]:
    """Return every Python file of the product by the part of its module's name after `tilewright`."""
    shell = ROOT / "src" / "tilewright"
    files = {file: file.relative_to(shell) for file in shell.glob("*.py")}
    files |= {file: file.relative_to(ROOT) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    return {
        ".".join(path.with_suffix("").parts).removesuffix("__init__").removesuffix("."): file
        for file, path in sorted(files.items())
    }


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of each import, at any depth; `from a import b` names `a.b`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=module, names=names, level=0):
                yield from ((node.lineno, f"{module}.{name.name}") for name in names)
            case ast.ImportFrom():
                yield node.lineno, "a relative import"
            case ast.Call(
                func=ast.Name("__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str() as name), *_],
            ):
                yield node.lineno, name
            case _:
                pass


def rule_of(module: str) -> Rule:
    """Return the rule of the smallest part that a module belongs to."""
    while module and module not in RULES:
        module = module.rpartition(".")[0]
    return RULES[module]


def allowed(name: str, rule: Rule) -> bool:
    """Tell whether a rule lets a module import the given dotted name."""
    top, _, rest = name.partition(".")
    if top != "tilewright":
        return top in sys.stdlib_module_names or top in rule.others
    part = rest.partition(".")[0]
    return part not in FOLDERS or part in rule.ours


def test_each_part_imports_only_what_it_may() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for module, file in product_files().items()
        for line, name in imports(ast.parse(file.read_text()))
        if not allowed(name, rule_of(module))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("dialects.loop", "from tilewright.passes import PASSES"),
        ("dialects.loop", "import torch"),
        ("passes.loop_tile", "from tilewright import tools"),
        ("passes.loop_tile", "def f():\n    import torch.fx"),
        ("frontends.fx", "import tilewright.backends.host"),
        ("backends.host.runtime", "from llvmlite import binding"),
        ("backends.llvm.emit", "import importlib\nimportlib.import_module('torch')"),
        ("backends.triton.compile", "import triton"),
        ("tools.opt", "import torch"),
        ("passes.loop_tile", "from . import loop_fuse"),
        ("", "import tilewright.tools.opt"),
    ],
)
def test_the_rules_refuse(module: str, statement: str) -> None:
    assert not all(allowed(name, rule_of(module)) for _, name in imports(ast.parse(statement)))


def test_the_rules_allow() -> None:
    statement = "import os\nfrom llvmlite import binding\nfrom tilewright.passes import PASSES\nimport tilewright"
    assert all(allowed(name, rule_of("backends.llvm.runtime")) for _, name in imports(ast.parse(statement)))


def test_the_product_names_no_inductor_module() -> None:
    named = [str(file.relative_to(ROOT)) for file in product_files().values() if "_inductor" in file.read_text()]
    assert named == []


LOAD_EVERYTHING = """
from tilewright.tools.universe import UNIVERSE
for load in UNIVERSE.all_dialects.values(): load()
for load in UNIVERSE.all_passes.values(): load()
"""


@pytest.mark.parametrize("load", ["", LOAD_EVERYTHING], ids=["import", "all dialects and passes"])
def test_opt_starts_without_torch(load: str) -> None:
    program = "import sys, tilewright.tools.opt\n" + load + "print(*{'torch', 'triton', 'llvmlite'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""

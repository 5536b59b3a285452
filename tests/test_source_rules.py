"""Rules of the source code, and tests that each rule can fail."""

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A package imports only from lines above its own, so not from its own layer. "nmt" is the package's own namespace, such
# as `nmt.Translator`.
LAYERS = (
    ("errors", "terminal_bar"),
    ("recipe", "logs"),
    ("special_ids", "devices"),
    ("packing", "processes"),
    ("storage", "grammar", "text", "kv_cache"),
    ("data", "model"),
    ("recurrent",),
    ("models",),
    ("checkpoint", "inference", "search"),
    ("alignment",),
    ("train", "decode"),
    ("diagnostics",),
    ("keep", "rerank", "export", "plots"),
    ("evaluate",),
    ("bench", "streams", "serve", "experiments", "heads", "classify"),
    ("validation_bleu",),
    ("pipeline", "engines"),
    ("nmt", "guide"),
    ("cli",),
    ("__main__",),
)
LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}

# Modules with lazy imports: every process imports these modules, but not every process needs the lazy imports.
LAZY_IMPORTERS = {
    "nmt",
    "nmt.cli",
    "nmt.engines",
    "nmt.cli.recipes",
    "nmt.keep.links",
    "nmt.logs",
    "nmt.train.metrics_writer",
}

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "constants"}
PICKLING_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
PICKLING_CALLS = {"torch.load", "torch.save"}
# Folders specific to one machine. Kernel interfaces such as "proc" are the same on every Linux.
MACHINE_PATH = re.compile(r"(?:^|[^A-Za-z0-9_.])/(?:home|root|opt|mnt|work|farm|Users|tmp|srv)/[A-Za-z]")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name from the project root, its text and its syntax tree."""

    name: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """`data` for `nmt.data.corpus`; `nmt` for the package's own `__init__`."""
        return self.name.split(".")[1] if "." in self.name else self.name

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in self.nodes if isinstance(node, Function))


@functools.cache
def read_modules(root: Path) -> list[Module]:
    modules = []
    for path in sorted((root / "nmt").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        modules.append(Module(".".join(parts).removesuffix(".__init__"), text, ast.parse(text)))
    return modules


# --- Rules: each yields the violations of a module --------------------------------------------------------------------


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the dotted names of imported modules of this project."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "nmt")
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level + (node.module or "")
        elif isinstance(node, ast.ImportFrom) and node.module == "nmt":
            yield from (f"nmt.{alias.name}" if alias.name in LAYER_OF else "nmt" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nmt."):
            yield node.module or ""


def imports_go_down(module: Module) -> Iterator[str]:
    if module.package not in LAYER_OF:
        yield f"{module.name} is in no layer: add {module.package!r} to LAYERS"
        return
    for target in imports(module.nodes):
        if target.startswith("."):
            yield f"{module.name} imports {target}: write the full module name, which shows the layer"
            continue
        package = (target + ".nmt").split(".")[1]
        if package not in LAYER_OF:
            yield f"{module.name} imports {target}, which is in no layer"
        elif package != module.package and LAYER_OF[package] >= LAYER_OF[module.package]:
            yield f"{module.name} (layer {LAYER_OF[module.package]}) imports {target} (layer {LAYER_OF[package]})"


def imports_are_at_module_level(module: Module) -> Iterator[str]:
    for function in module.functions if module.name not in LAZY_IMPORTERS else ():
        for target in imports(ast.walk(function)):
            yield f"{module.name}.{function.name} hides an import of {target}"


def files_and_functions_are_short(module: Module) -> Iterator[str]:
    lines = module.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{module.name} has {lines} lines"
    for function in module.functions:
        length = (function.end_lineno or 0) - function.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield f"{module.name}.{function.name} has {length} lines"


def public_names_are_documented(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield f"{module.name} has no docstring"
    yield from undocumented(module.tree, module.name)


def undocumented(owner: ast.Module | ast.ClassDef, name: str) -> Iterator[str]:
    for node in owner.body:
        if not isinstance(node, (Function, ast.ClassDef)) or node.name.startswith("_"):
            continue
        if not (ast.get_docstring(node) or "").strip():
            yield f"{name}.{node.name} has no docstring"
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node, f"{name}.{node.name}")


def modules_have_descriptive_names(module: Module) -> Iterator[str]:
    for part in module.name.split("."):
        if part.strip("_") in VAGUE_NAMES:
            yield f"{module.name}: {part!r} is not a descriptive name"


def nothing_is_pickled_or_evaluated(module: Module) -> Iterator[str]:
    for node in module.nodes:
        match node:
            case ast.Import(names=names) if bad := {alias.name.split(".")[0] for alias in names} & PICKLING_MODULES:
                yield f"{module.name} imports {', '.join(sorted(bad))}"
            case ast.ImportFrom(module=str(source)) if source.split(".")[0] in PICKLING_MODULES:
                yield f"{module.name} imports from {source}"
            case ast.ImportFrom(module="torch", names=names) if {alias.name for alias in names} & {"load", "save"}:
                yield f"{module.name} imports torch's load or save"
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                yield f"{module.name} calls {name}"
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if f"{owner}.{name}" in PICKLING_CALLS:
                yield f"{module.name} uses {owner}.{name}"
            case ast.keyword(arg="allow_pickle", value=value) if not is_false(value):
                yield f"{module.name} allows pickle"


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def no_path_of_one_machine(module: Module) -> Iterator[str]:
    for number, line in enumerate(module.text.split("\n"), start=1):
        if MACHINE_PATH.search(line):
            yield f"{module.name}, line {number}, names a path of one machine"


RULES: list[Callable[[Module], Iterator[str]]] = [
    imports_go_down,
    imports_are_at_module_level,
    files_and_functions_are_short,
    public_names_are_documented,
    modules_have_descriptive_names,
    nothing_is_pickled_or_evaluated,
    no_path_of_one_machine,
]


# --- The source follows the rules -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_the_source_follows_the_rules(rule: Callable[[Module], Iterator[str]]) -> None:
    modules = read_modules(ROOT)
    assert len(modules) > 10
    assert [problem for module in modules for problem in rule(module)] == []


@pytest.mark.parametrize("folder", ["recipes", "tools", "tests", ".ci"])
def test_no_other_file_has_a_path_of_one_machine(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in ("", ".py", ".toml", ".txt") and path.is_file():
            module = Module(str(path), path.read_text(encoding="utf-8"), ast.Module([], []))
            assert list(no_path_of_one_machine(module)) == []


def test_files_of_tests_are_short() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 10
    modules = [Module(str(path), path.read_text(encoding="utf-8"), ast.Module([], [])) for path in files]
    assert [problem for module in modules for problem in files_and_functions_are_short(module)] == []


# --- Each rule can fail -----------------------------------------------------------------------------------------------

LONG_FUNCTION = "def f():\n    '''D.'''\n" + "    x = 1\n" * 59
GOOD = '''"""A module."""

import numpy as np
from nmt.packing.packed import Batch
from nmt.data.store import PairStore


def load(path, model):
    """Read."""
    model.eval()
    return np.load(path, allow_pickle=False), "/proc/cpuinfo", "and/or", "a/home/b"


class Store:
    """A store."""

    def __len__(self):
        return 0

    def _inner(self):
        return 0
'''

BAD = [
    (imports_go_down, "nmt/data/x.py", "import nmt.train.loss"),
    (imports_go_down, "nmt/data/x.py", "from nmt.model.layers import Embedding"),  # same layer, other package
    (imports_go_down, "nmt/decode/x.py", "from nmt import train"),
    (imports_go_down, "nmt/decode/x.py", "from nmt import Translator"),
    (imports_go_down, "nmt/decode/x.py", "import nmt"),
    (imports_go_down, "nmt/logs.py", "def f():\n    from nmt.cli import main"),
    (imports_go_down, "nmt/logs.py", "from nmt.packing.packed import Batch"),
    (imports_go_down, "nmt/logs.py", "from . import packed"),
    (imports_go_down, "nmt/data/x.py", "from ..model.layers import Embedding"),
    (imports_go_down, "nmt/data/x.py", "from nmt.unlisted import name"),
    (imports_go_down, "nmt/unlisted/x.py", "x = 1"),
    (imports_are_at_module_level, "nmt/cli/x.py", "def f():\n    from nmt.train import trainer"),
    (imports_are_at_module_level, "nmt/cli/x.py", "class A:\n    async def f(self):\n        import nmt.packing"),
    (imports_are_at_module_level, "nmt/cli/x.py", "def f():\n    from . import packed"),
    (files_and_functions_are_short, "nmt/cli.py", "x = 1\n" * 501),
    (files_and_functions_are_short, "nmt/cli.py", LONG_FUNCTION),
    (public_names_are_documented, "nmt/cli.py", "x = 1"),
    (public_names_are_documented, "nmt/cli.py", "'''M.'''\ndef f():\n    pass"),
    (public_names_are_documented, "nmt/cli.py", "'''M.'''\nclass A:\n    pass"),
    (public_names_are_documented, "nmt/cli.py", "'''M.'''\nclass A:\n    '''C.'''\n    def f(self):\n        pass"),
    (public_names_are_documented, "nmt/cli.py", "'''M.'''\nasync def f():\n    '''   '''"),
    (modules_have_descriptive_names, "nmt/data/utils.py", ""),
    (modules_have_descriptive_names, "nmt/model/_helpers.py", ""),
    (modules_have_descriptive_names, "nmt/common/text.py", ""),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "import pickle"),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "import os, joblib.memory"),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "from pickle import loads"),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "torch.load('x')"),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "save = torch.save"),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "from torch import load"),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "eval('1')"),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "exec('1')"),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "np.load('x', allow_pickle=True)"),
    (nothing_is_pickled_or_evaluated, "nmt/cli.py", "np.load('x', allow_pickle=flag)"),
    (no_path_of_one_machine, "nmt/cli.py", "x = '/" + "home/me'"),
    (no_path_of_one_machine, "nmt/cli.py", "# see /" + "opt/data"),
]


def build(root: Path, name: str, text: str) -> Module:
    path = root / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    (module,) = read_modules(root)
    return module


@pytest.mark.parametrize(("rule", "name", "text"), BAD)
def test_violations_are_found(rule: Callable[[Module], Iterator[str]], name: str, text: str, tmp_path: Path) -> None:
    assert list(rule(build(tmp_path, name, text)))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_violation_and_a_pass(rule: Callable[[Module], Iterator[str]], tmp_path: Path) -> None:
    assert rule in {violation[0] for violation in BAD}
    assert list(rule(build(tmp_path, "nmt/train/x.py", GOOD))) == []


def test_a_file_and_a_function_may_have_the_maximum_length(tmp_path: Path) -> None:
    shorter = LONG_FUNCTION.removesuffix("    x = 1\n")
    text = shorter + "x = 1\n" * (MAX_FILE_LINES - shorter.count("\n"))
    assert list(files_and_functions_are_short(build(tmp_path, "nmt/cli.py", text))) == []


def test_modules_have_dotted_names_and_a_package(tmp_path: Path) -> None:
    for name in ("nmt/__init__.py", "nmt/data/__init__.py", "nmt/data/tables/nouns.py", "nmt/__main__.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
    found = {module.name: module.package for module in read_modules(tmp_path)}
    assert found == {"nmt": "nmt", "nmt.__main__": "__main__", "nmt.data": "data", "nmt.data.tables.nouns": "data"}

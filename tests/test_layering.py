"""Who may import whom. The rule is checked on the syntax tree, so that imports inside functions count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedsynth"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 300

# Mathematics, models, readers: what each may import of ours besides itself, records, errors and seeding.
PURE = {
    "data": set(),
    "models": set(),
    "privacy": set(),
    "prototypes": {"privacy"},
    "diffusion": set(),
    "evaluation": set(),
    "attacks": {"evaluation", "privacy", "prototypes"},
    "selection": set(),
}
FOUNDATION = {"records", "errors", "seeding"}
FRAMEWORKS = {"lightning", "pytorch_lightning", "lightning_fabric", "hydra", "omegaconf", "wandb"}
LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}

# The loop subclasses protected parts of Lightning; what can break with a new version is in these files.
# checkpoints.py is the part of the loop that saves and restores it; both are covered by the contract test.
MAY_USE_LIGHTNING_INTERNALS = {
    f"federated/{name}.py" for name in ("loop", "client_epoch", "checkpoints", "sharding")
}
DRAWERS = {"utils", "util", "helpers", "helper", "misc", "common"}


def imported_modules(source: str, module: str) -> list[str]:
    """Full names of everything imported; ``from a import b`` gives ``a.b``.

    Args:
        source: Text of the module.
        module: Its own dotted name, with ``.__init__`` for a package, to resolve relative imports.
    """
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def layering_faults(source: str, module: str) -> list[str]:
    """What a module of a pure package imports against the rule."""
    package = module.split(".")[1]
    allowed = FOUNDATION | {package} | PURE[package]
    faults = []
    for name in imported_modules(source, module):
        top, *rest = name.split(".")
        if top in FRAMEWORKS or (top == "fedsynth" and rest and rest[0] not in allowed):
            faults.append(name)
    return faults


def lightning_internals(source: str) -> list[str]:
    """Underscore names of Lightning that a module imports or reads from a trainer."""

    def is_private(part: str) -> bool:
        return part.startswith("_") and not part.startswith("__")

    found = []
    for name in imported_modules(source, "fedsynth.any"):
        top, *rest = name.split(".")
        if top in LIGHTNING and any(map(is_private, rest)):
            found.append(name)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = node.value
            last = (
                owner.attr
                if isinstance(owner, ast.Attribute)
                else owner.id
                if isinstance(owner, ast.Name)
                else ""
            )
            if last in {"trainer", "_trainer"}:
                found.append(f"{last}.{node.attr}")
    return found


def dotted(path: Path) -> str:
    return ".".join(("fedsynth", *path.relative_to(PACKAGE).with_suffix("").parts))


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("package", PURE)
def test_pure_package_imports_nothing_of_ours_but_the_foundation(package: str) -> None:
    modules = sorted((PACKAGE / package).rglob("*.py"))
    assert modules, f"src/fedsynth/{package} is gone: move its name out of this test"
    faults = {relative(path): layering_faults(path.read_text(), dotted(path)) for path in modules}
    assert {path: names for path, names in faults.items() if names} == {}


def test_foundation_imports_nothing_of_ours_but_itself() -> None:
    for name in sorted(FOUNDATION):
        path = PACKAGE / f"{name}.py"
        ours = [n for n in imported_modules(path.read_text(), dotted(path)) if n.split(".")[0] == "fedsynth"]
        assert {n.split(".")[1] for n in ours} <= FOUNDATION, f"{name}.py imports {ours}"


def test_strategies_know_nothing_of_lightning() -> None:
    modules = sorted((PACKAGE / "federated" / "strategies").rglob("*.py"))
    assert modules
    tops = {
        relative(p): {n.split(".")[0] for n in imported_modules(p.read_text(), dotted(p))} for p in modules
    }
    assert {path: names & FRAMEWORKS for path, names in tops.items() if names & FRAMEWORKS} == {}


def test_lightning_internals_stay_in_the_loop() -> None:
    found = {relative(path): lightning_internals(path.read_text()) for path in MODULES}
    offenders = {
        path: names for path, names in found.items() if names and path not in MAY_USE_LIGHTNING_INTERNALS
    }
    assert offenders == {}


def test_planning_a_run_loads_neither_torch_nor_lightning() -> None:
    specs = sorted(dotted(path) for path in PACKAGE.glob("stages/*/spec.py"))
    assert specs
    script = (
        "import importlib, sys\n"
        f"for name in {['fedsynth.pipeline', 'fedsynth.train', *specs]!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = {{'torch', 'torchmetrics', 'diffusers', *{LIGHTNING!r}}} & set(sys.modules)\n"
        f"    assert not heavy, f'{{name}} loads {{sorted(heavy)}}'\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_no_module_is_a_drawer() -> None:
    assert [relative(path) for path in MODULES if {path.stem, path.parent.name} & DRAWERS] == []


def test_modules_stay_short() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_git_ignores_no_source_file() -> None:
    # A pattern such as `data/` also hides src/fedsynth/data, from git and from ruff; `/data/` does not.
    files = [
        *MODULES,
        *(ROOT / "tests").rglob("*.py"),
        *(p for p in (ROOT / "configs").rglob("*.yaml") if p.parent.name != "local"),
    ]
    names = "\n".join(path.relative_to(ROOT).as_posix() for path in files)
    result = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        cwd=ROOT,
        input=names,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == []


@pytest.mark.parametrize(
    ("statement", "module"),
    [
        ("import lightning", "fedsynth.privacy.gaussian"),
        ("from omegaconf import DictConfig", "fedsynth.data.paired"),
        ("def f():\n    import wandb", "fedsynth.models.fusion"),
        ("from fedsynth.stages import encode", "fedsynth.attacks.membership"),
        ("from fedsynth import pipeline", "fedsynth.evaluation.mmd"),
        ("from ..prototypes import align", "fedsynth.privacy.clipping"),
        ("from .. import models", "fedsynth.diffusion.__init__"),
    ],
)
def test_forbidden_import_is_seen(statement: str, module: str) -> None:
    assert len(layering_faults(statement, module)) == 1


@pytest.mark.parametrize(
    ("statement", "module"),
    [
        ("from fedsynth.errors import ConfigError", "fedsynth.privacy.gaussian"),
        ("from fedsynth.privacy import gaussian", "fedsynth.attacks.membership"),
        ("from .shards import assign_shards", "fedsynth.prototypes.release"),
        ("from .gaussian import analytic_gaussian_std", "fedsynth.privacy.__init__"),
        ("import torch, scipy.stats", "fedsynth.evaluation.mmd"),
    ],
)
def test_allowed_import_is_not_a_fault(statement: str, module: str) -> None:
    assert layering_faults(statement, module) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from lightning.pytorch.loops import _FitLoop",
        "from lightning.pytorch.loops._internal import anything",
        "self.trainer._checkpoint_connector",
        "trainer._run()",
    ],
)
def test_lightning_internal_is_seen(statement: str) -> None:
    assert len(lightning_internals(statement)) == 1


def test_public_lightning_and_own_underscores_are_not_internals() -> None:
    source = (
        "from lightning.pytorch import Trainer, __version__\nself._trainer.fit\nself._loss\ntrainer.__class__"
    )
    assert lightning_internals(source) == []

"""The house rules that a linter does not know: sizes, imports, broad excepts, privacy.

Each rule has a list of exceptions. The lists may only shrink: an entry that no longer breaks
its rule fails the test, so it must be struck.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("manifests", "controller", "node_agent")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_CLASS_METHODS = 15
MAX_PARAMETERS = 6

LONG_FILES: frozenset[str] = frozenset()
LONG_FUNCTIONS: frozenset[str] = frozenset()
LARGE_CLASSES: frozenset[str] = frozenset()
LATE_IMPORTS: frozenset[str] = frozenset()

# Roots of threads, tasks and processes: they catch all, fail what is in flight, and report.
ROOT_MARK = "noqa: BLE001"

GROUND_MAY_IMPORT = frozenset({"pydantic", "pydantic_core", "yaml", "manifests"})
# The way from a request to token ids, which both sides share (ADR 8).
PROMPT_MAY_IMPORT = frozenset({"msgspec"})
TOKENIZER_PROCESS = {"manifests/prompt/worker.py": frozenset({"transformers"})}
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "manager", "common", "misc", "data"})

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(tree: ast.Module) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(tree) if isinstance(node, FunctionNode))


def assert_exactly(found: set[str], excepted: frozenset[str], rule: str) -> None:
    new, gone = sorted(found - excepted), sorted(excepted - found)
    assert not new, f"{rule}: {new}"
    assert not gone, f"no longer breaks the rule, strike it from the list: {gone}"


def test_every_file_can_be_read_in_one_sitting() -> None:
    found = {relative(p) for p in FILES if len(p.read_text().splitlines()) >= MAX_FILE_LINES}
    assert_exactly(found, LONG_FILES, f"files of {MAX_FILE_LINES} lines or more")


def test_every_function_fits_on_a_screen() -> None:
    found = {
        f"{relative(path)}:{node.name}"
        for path in FILES
        for node in functions(parse(path))
        if (node.end_lineno or node.lineno) - node.lineno + 1 >= MAX_FUNCTION_LINES
    }
    assert_exactly(found, LONG_FUNCTIONS, f"functions of {MAX_FUNCTION_LINES} lines or more")


def test_every_class_has_one_job() -> None:
    found = {
        f"{relative(path)}:{node.name}"
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        and sum(isinstance(item, FunctionNode) for item in node.body) >= MAX_CLASS_METHODS
    }
    assert_exactly(found, LARGE_CLASSES, f"classes of {MAX_CLASS_METHODS} methods or more")


def test_functions_take_few_parameters_or_a_value_object() -> None:
    found = set()
    for path in FILES:
        for node in functions(parse(path)):
            names = [
                a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            ]
            if len([name for name in names if name not in {"self", "cls"}]) > MAX_PARAMETERS:
                found.add(f"{relative(path)}:{node.name}")
    assert_exactly(found, frozenset(), f"functions of more than {MAX_PARAMETERS} parameters")


def test_imports_stand_at_the_top() -> None:
    found = {
        f"{relative(path)}:{function.name}"
        for path in FILES
        for function in functions(parse(path))
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert_exactly(found, LATE_IMPORTS, "imports inside functions")


def test_only_roots_catch_everything() -> None:
    found = set()
    for path in FILES:
        lines = path.read_text().splitlines()
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = node.type
            names = {caught.id} if isinstance(caught, ast.Name) else set()
            broad = caught is None or bool(names & {"Exception", "BaseException"})
            # Tidying up and passing the fault on is no catching.
            passes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if broad and not passes_on and ROOT_MARK not in lines[node.lineno - 1]:
                found.add(f"{relative(path)}:{node.lineno}")
    assert_exactly(found, frozenset(), "broad excepts outside roots")


def test_nobody_reaches_into_anothers_private_fields() -> None:
    found = set()
    for path in FILES:
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
                continue
            if node.attr.startswith("__") and node.attr.endswith("__"):
                continue
            owner = node.value
            own = isinstance(owner, ast.Name) and owner.id in {"self", "cls"}
            if not own and not (isinstance(owner, ast.Call) and _is_super(owner)):
                found.add(f"{relative(path)}:{node.lineno} .{node.attr}")
    # os._exit is the interpreter's documented way to leave without running the exit handlers.
    found = {item for item in found if not item.endswith("._exit")}
    assert_exactly(found, frozenset(), "private fields of others")


def _is_super(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "super"


def test_the_ground_floor_imports_the_standard_library_pydantic_and_yaml_only() -> None:
    import sys

    allowed = GROUND_MAY_IMPORT | sys.stdlib_module_names
    found = set()
    for path in FILES:
        if path.relative_to(ROOT).parts[0] != "manifests":
            continue
        here = allowed | TOKENIZER_PROCESS.get(relative(path), frozenset())
        if path.relative_to(ROOT).parts[1] == "prompt":
            here |= PROMPT_MAY_IMPORT
        for node in ast.walk(parse(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found |= {f"{relative(path)}: {n}" for n in names if n.split(".")[0] not in here}
    assert_exactly(found, frozenset(), "imports of manifests")


def test_plans_read_no_clock_and_touch_no_world() -> None:
    world = {"asyncio", "time", "os", "pathlib", "random", "socket", "subprocess", "structlog"}
    found = set()
    for path in FILES:
        if not path.stem.endswith("_plan") and path.parent.name != "placement":
            continue
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]}
            else:
                continue
            found |= {f"{relative(path)}: {name}" for name in names & world}
    assert_exactly(found, frozenset(), "plans that touch the world")


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_module_says_what_it_owns(path: Path) -> None:
    assert path.stem not in VAGUE_NAMES, "name the module after what it owns"
    assert ast.get_docstring(parse(path)), "a module docstring says what it owns and who calls it"

"""What must not stand in any file of the project, and what must be listed where."""

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked_text() -> dict[str, str]:
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    texts = {}
    for name in names:
        path = ROOT / name
        if name and path.is_file():
            try:
                texts[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return texts


def test_no_file_names_a_package_registry_or_a_download_address() -> None:
    hosts = re.compile(r"(pypi|pythonhosted|npmjs)\.(org|com)", re.IGNORECASE)
    found = [name for name, text in tracked_text().items() if hosts.search(text)]
    assert [name for name in found if name != "tests/architecture/test_words.py"] == []


def test_every_package_is_explained_in_one_sentence() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [
        path.parent.relative_to(ROOT).as_posix()
        for top in ("manifests", "controller", "node_agent")
        for path in (ROOT / top).rglob("__init__.py")
    ]
    missing = [name for name in packages if f"`{name}`" not in text and f"`{name}/`" not in text]
    assert missing == []


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_decision_record_has_a_status_and_a_date() -> None:
    for path in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")):
        text = path.read_text()
        assert re.search(r"^Status: (accepted|superseded by \d{4})", text, re.MULTILINE), path.name
        assert re.search(r"^Date: \d{4}-\d{2}-\d{2}$", text, re.MULTILINE), path.name

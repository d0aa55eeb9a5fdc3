"""Tests of the check that a release passes before it is published, and of the containers' files."""

import importlib.util
import json
import re

import pytest

import sim
from course.bootstrap import ROOT
from course.manual import COMMANDS

spec = importlib.util.spec_from_file_location("check_release", ROOT / ".github" / "check_release.py")
check_release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_release)
FILES = ["kernelwatch-0.3.0.tar.gz", "kernelwatch-0.3.0-py3-none-any.whl"]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "__init__.py").write_text('import os\n\n__version__ = "0.3.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n# Version 0.3.0 · 2027-01-31\n")
    return tmp_path


def test_a_release_in_agreement_is_published(root):
    assert check_release.problems("v0.3.0", FILES, root) == []


def test_each_disagreement_is_named(root):
    (root / "CHANGELOG.md").write_text("# Version 0.3.0 · not released\n")
    tag, files, heading = check_release.problems("v0.2.0", FILES[:1], root)
    assert "wanted the tag v0.3.0" in tag and "wanted kernelwatch-0.3.0-py3" in files and "DATE" in heading


def test_the_changelog_has_a_heading_for_this_version_and_unique_ones():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^# Version (\S+) · (?:\d{4}-\d\d-\d\d|not released)$", text, re.MULTILINE)
    assert versions[0] == sim.__version__ and len({*versions}) == len(versions)


@pytest.mark.parametrize(
    "file", [".devcontainer/devcontainer.json", ".vscode/settings.json", ".vscode/tasks.json"]
)
def test_files_of_editors_are_json_and_name_commands_that_exist(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert json.loads(text)
    assert {*re.findall(r"notebooks/course (\w+)", text)} <= {*COMMANDS}

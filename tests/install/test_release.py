"""tools/release.sh refuses what is not a release, and every library in a wheel has its licence."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from test_find_package import ROOT, run

LICENCES = ROOT / "tools/wheel/licenses"


def bill_of_materials() -> dict:
    return json.loads(run(sys.executable, ROOT / "tools/wheel/sbom.py", "1.2.3",
                          env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}))


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no dpkg-query")
def test_every_library_in_a_wheel_has_a_licence_text_and_is_in_the_bill_of_materials():
    sources = (ROOT / "tools/wheel/sources.txt").read_text().splitlines()
    pinned = {line.split()[0]: line.split()[2] for line in sources if not line.startswith("#")}
    bill = bill_of_materials()
    sums = {one["name"]: [each["content"] for each in one.get("hashes", ())]
            for one in bill["components"]}
    assert {name: sums[name] for name in pinned} == {name: [sum] for name, sum in pinned.items()}
    assert set(sums) - set(pinned) == {"cuda-runtime", "libstdc++", "nanobind"}
    assert set(sums) == {path.name for path in LICENCES.iterdir()}
    assert all(len(path.read_text()) > 1000 for path in LICENCES.iterdir())
    for one in bill["components"]:
        assert one["version"][0].isdigit() and one["licenses"], one


def test_a_bill_of_materials_depends_only_on_the_sources():
    assert bill_of_materials() == bill_of_materials()
    assert bill_of_materials()["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"


@pytest.fixture
def checkout(tmp_path):
    """A repository with what the script reads before it builds."""
    for name, text in (("pyproject.toml", 'version = "1.2.3"\n'), ("CHANGELOG.md", "## 1.2.3\n"),
                       ("tools/reference_reader/pyproject.toml", 'version = "1.2.3"\n')):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "tools/release.sh", tmp_path / "tools")
    commit(tmp_path)
    return tmp_path


def commit(folder):
    run("git", "init", "--quiet", cwd=folder)
    run("git", "add", ".", cwd=folder)
    run("git", "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "a", cwd=folder)


def refusal(folder, *words: str) -> str:
    script = [folder / "tools/release.sh", "--arch", "x86_64", *words]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 1 and not (folder / "dist").exists(), done.stderr
    return done.stderr


def test_it_refuses_another_version(checkout):
    assert "the version in pyproject.toml is 1.2.3, and not 1.2.4" in refusal(checkout, "1.2.4")
    reader = checkout / "tools/reference_reader/pyproject.toml"
    reader.write_text('version = "1.2.2"\n')
    assert f"the version in {reader.relative_to(checkout)} is 1.2.2" in refusal(checkout, "1.2.3")


def test_it_refuses_a_version_without_a_section_of_changes(checkout):
    (checkout / "CHANGELOG.md").write_text("## 1.2.30\n## 1x2.3\n")
    commit(checkout)
    assert "CHANGELOG.md has no section of 1.2.3" in refusal(checkout, "1.2.3")


def test_it_refuses_files_that_differ_from_the_commit(checkout):
    (checkout / "new").touch()
    assert "files differ from the commit: ?? new" in refusal(checkout, "1.2.3")


def test_there_is_nothing_to_compare_before_the_first_build(checkout):
    assert "dist/ has no release" in refusal(checkout, "--check-reproducible", "1.2.3")

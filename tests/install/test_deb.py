"""The Debian packages: their contents, what they depend on, and that the programs run."""

import re
import shutil

import pytest
from test_find_package import BUILD, run
from test_release import LICENCES

pytestmark = pytest.mark.skipif(shutil.which("dpkg-shlibdeps") is None, reason="no dpkg-shlibdeps")


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", folder)
    return {path.name.split("_")[0]: path for path in folder.glob("*.deb")}


def test_there_is_a_package_of_programs_and_one_for_development(packages):
    assert set(packages) == {"cairn-tools", "libcairn-dev"}
    programs = run("dpkg-deb", "--contents", packages["cairn-tools"])
    assert set(re.findall(r"\./usr/bin/(\S+)", programs)) == {"kv-dump", "kv-admin", "kv-bench"}
    for file in ("bash-completion/completions/kv-admin",
                 "zsh/vendor-completions/_kv-dump", "fish/vendor_completions.d/kv-bench.fish"):
        assert f"./usr/share/{file}\n" in programs
    development = run("dpkg-deb", "--contents", packages["libcairn-dev"])
    assert "./usr/include/cairn/core/checkpoint_store.h" in development
    assert "/cmake/cairn/cairnConfig.cmake" in development
    assert "/bin/" not in development


@pytest.mark.parametrize("name", ["cairn-tools", "libcairn-dev"])
def test_the_licences_of_the_libraries_are_in_the_packages(packages, name):
    contents = run("dpkg-deb", "--contents", packages[name])
    for file in ("LICENSE", "copyright", *(f"licenses/{path.name}" for path in LICENCES.iterdir())):
        assert f"./usr/share/doc/{name}/{file}\n" in contents


def test_the_programs_depend_on_the_packages_of_their_libraries(packages):
    depends = run("dpkg-deb", "--field", packages["cairn-tools"], "Depends")
    for name in ("libc6", "librocksdb", "libzstd1", "libxxhash0", "liburing2"):
        assert name in depends, depends
    assert "libcurl" not in depends  # opened at run time, and recommended


def test_an_extracted_program_runs(packages, tmp_path):
    run("dpkg-deb", "--extract", packages["cairn-tools"], tmp_path)
    assert run(tmp_path / "usr/bin/kv-dump", "--version").strip()
    assert "STORE" in run(tmp_path / "usr/bin/kv-admin", "--help")

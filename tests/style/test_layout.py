"""The order of the layers and their folders, cycles between modules, and headers.

A module is a header and the source of the same name. A folder includes its internal/ folder, which
other layers do not. What a layer and a folder may include are tables, so that a change of the order
is a decision and not an accident.
"""

import graphlib
import os
import re
import shlex
import subprocess
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CAIRN_BUILD_DIR", ROOT / "build"))
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SOURCE_SUFFIXES = (".cc", ".cu")
HEADER_SUFFIXES = (".h", ".cuh")
LICENCE = "// SPDX-License-Identifier: Apache-2.0"  # of the headers that are installed

# schema <- kv <- core <- cuda | python | tools | bench: a layer, and those that it may include.
LAYERS = {
    "schema": set(),
    "kv": {"schema"},
    "core": {"schema", "kv"},
    "cuda": {"schema", "kv", "core"},
    "python": {"schema", "kv", "core", "cuda"},
    "tools": {"schema", "kv", "core", "cuda"},
    "bench": {"schema", "kv", "core", "cuda"},
}

# Within a layer: a folder, and the folders of the same layer that it may include, from the lowest
# to the highest. The files of kv/ and core/ that are not in a folder are the façade of the layer.
MAY_INCLUDE = {
    "kv/base": set(),
    "kv/io": {"kv/base"},
    "kv/storage": {"kv/base", "kv/io"},
    "kv/storage/files": {"kv/base", "kv/io", "kv/storage"},
    "kv/storage/rados": {"kv/base", "kv/io", "kv/storage"},
    "kv/storage/s3": {"kv/base", "kv/io", "kv/storage"},
    "kv/table": {"kv/base", "kv/storage"},
    "kv/root": {"kv/base", "kv/storage", "kv/table"},
    "kv/storage/cache": {"kv/base", "kv/io", "kv/storage", "kv/storage/files"},
    "kv/storage/open": {"kv/base", "kv/storage", "kv/storage/files", "kv/storage/rados",
                        "kv/storage/s3"},
    "kv/segment": {"kv/base", "kv/io", "kv/storage", "kv/table", "kv/root"},
    "kv/state": {"kv/base", "kv/io", "kv/storage", "kv/storage/files", "kv/table", "kv/root",
                 "kv/segment"},
    "kv/commit": {"kv/base", "kv/io", "kv/storage", "kv/table", "kv/root", "kv/segment",
                  "kv/state"},
    "kv/read": {"kv/base", "kv/storage", "kv/table", "kv/root", "kv/segment", "kv/state"},
    "kv/maintain": {"kv/base", "kv/io", "kv/storage", "kv/table", "kv/root", "kv/segment",
                    "kv/state", "kv/commit", "kv/read"},
    "kv": {"kv/base", "kv/io", "kv/storage", "kv/root", "kv/storage/cache", "kv/storage/open",
           "kv/segment", "kv/state", "kv/commit", "kv/read", "kv/maintain"},
    "core/base": set(),
    "core/codec": {"core/base"},
    "core/tensor": {"core/base"},
    "core/device": {"core/tensor"},
    "core/ranks": {"core/tensor", "core/device"},
    "core/state_dict": {"core/base", "core/tensor", "core/device"},
    "core/collectives": {"core/tensor", "core/device", "core/ranks", "core/state_dict"},
    "core/step": {"core/base", "core/codec", "core/tensor", "core/state_dict"},
    "core/load": {"core/base", "core/tensor", "core/device", "core/ranks", "core/state_dict",
                  "core/step"},
    "core/save": {"core/base", "core/codec", "core/tensor", "core/device", "core/state_dict",
                  "core/step"},
    "core/inspect": {"core/base", "core/tensor", "core/device", "core/state_dict", "core/step",
                     "core/load"},
    "core/rewrite": {"core/base", "core/tensor", "core/state_dict", "core/step", "core/load",
                     "core/inspect"},
    "core": {"core/base", "core/ranks", "core/state_dict", "core/step", "core/load", "core/save",
             "core/inspect", "core/rewrite"},
    "core/upkeep": {"core/base", "core/tensor", "core/device", "core/state_dict", "core/step",
                    "core/load", "core/save", "core"},
    "core/interop/safetensors": {"core/base", "core/tensor", "core/state_dict", "core/step",
                                 "core/inspect", "core", "core/upkeep"},
    "core/interop/model_directory": {"core/base", "core/state_dict", "core/step", "core/upkeep",
                                     "core/interop/safetensors"},
    "tools/common": set(),
    "tools/dump": {"tools/common"},
    "tools/admin": {"tools/common"},
    "tools/bench": {"tools/common"},
}
# Sources without a header: programs and the cases of one, modules of another runtime, and the build
# of a header where the toolkit is missing.
WITHOUT_HEADER = {"python/src/module.cc", "cuda/nccl_communicator_absent.cc"}
# Sources that implement the functions of one header together.
OF_HEADER = {
    "core/collectives/state_dict_collectives.h": {
        "core/collectives/broadcast_state_dict.cc",
        "core/collectives/gather_state_dict.cc",
    },
    "core/load/internal/load.h": {
        "core/load/internal/map_tensors.cc",
        "core/load/internal/shard_load.cc",
        "core/load/internal/update.cc",
    },
    "core/rewrite/internal/rewrite.h": {
        "core/rewrite/internal/edit.cc",
        "core/rewrite/internal/merge.cc",
    },
    "cuda/internal/kernels.h": {"cuda/internal/copy_kernels.cu", "cuda/internal/digest_kernel.cu"},
    "kv/read/snapshot.h": {"kv/read/internal/verify_files.cc"},
    "kv/commit/internal/rank_parts.h": {"kv/commit/internal/part_gatherer.cc"},
    "python/src/bindings.h": {
        f"python/src/{part}.cc"
        for part in (
            "collectives", "conversions", "inspect_binding", "load_plan", "new_tensors",
            "step_part_binding",
        )
    },
    "python/src/flatten.h": {"python/src/rank_samples.cc"},
}


def read_tree() -> dict[str, str]:
    """The text of every source file by its path."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for layer in LAYERS
        for path in sorted((ROOT / layer).rglob("*"))
        if path.suffix in SOURCE_SUFFIXES + HEADER_SUFFIXES
    }


def module_of(path: str) -> str:
    return os.path.splitext(path)[0]


def folder_of(path: str) -> str:
    folder = os.path.dirname(path)
    return folder.removesuffix("/internal")


def what_is_wrong(folder: str, target: str) -> str | None:
    """Why a file in `folder` may not include `target`, which names the file from the root."""
    other = folder_of(target)
    layer, other_layer = folder.split("/")[0], target.split("/")[0]
    if other_layer == "..":
        return "is relative to the file, name it from the root"
    if other_layer not in LAYERS or other == folder:
        return None
    if other_layer != layer:
        allowed = other_layer in LAYERS[layer]
        return None if allowed and "/internal/" not in target else "is of another layer"
    with_table = folder in MAY_INCLUDE or other in MAY_INCLUDE
    allowed = other in MAY_INCLUDE.get(folder, set()) or not with_table
    return None if allowed else "is of another folder"


def find_wrong_directions(tree: dict[str, str]) -> list[str]:
    return [
        f"{path}: {target} {wrong}"
        for path, text in tree.items()
        for target in INCLUDE.findall(text)
        if (wrong := what_is_wrong(folder_of(path), target))
    ]


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """The nodes of one cycle, the first repeated at the end; [] if there is none."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def module_edges(tree: dict[str, str]) -> dict[str, set[str]]:
    edges = defaultdict(set)
    for path, text in tree.items():
        for target in INCLUDE.findall(text):
            if target in tree and module_of(target) != module_of(path):
                edges[module_of(path)].add(module_of(target))
    return edges


def test_layers_and_folders_include_each_other_in_one_order():
    problems = find_wrong_directions(read_tree())

    assert not problems, "\n".join(problems)


def test_the_order_of_the_folders_has_no_cycle():
    assert find_cycle(MAY_INCLUDE) == []


def test_every_folder_is_in_the_table():
    folders = {folder_of(path) for path in read_tree()}
    with_folders = {f for f in folders if f.startswith(("kv", "core", "tools/"))}

    assert with_folders == set(MAY_INCLUDE)


def test_modules_do_not_include_each_other_in_a_cycle():
    assert find_cycle(module_edges(read_tree())) == []


def test_every_basename_of_kv_and_core_is_unique():
    modules = defaultdict(set)
    for path in read_tree():
        if path.startswith(("kv/", "core/")):
            modules[os.path.basename(path)].add(path)

    assert [sorted(paths) for paths in modules.values() if len(paths) > 1] == []


def test_every_source_has_a_header():
    tree = read_tree()
    missing = {path for path in tree
               if path.endswith(SOURCE_SUFFIXES) and module_of(path) + ".h" not in tree
               and not path.startswith(("tools/", "bench/"))}  # verbs of a program share one

    assert missing == WITHOUT_HEADER.union(*OF_HEADER.values())
    for header, sources in OF_HEADER.items():
        assert {path for path in sources if f'#include "{header}"' not in tree[path]} == set()


def test_every_header_begins_with_pragma_once_and_says_what_it_is_for():
    problems = []
    for path, text in read_tree().items():
        if not path.endswith(HEADER_SUFFIXES):
            continue
        lines = text.splitlines()
        installed = path.startswith(("schema", "kv", "core", "cuda")) and "/internal/" not in path
        if lines[0] != "#pragma once":
            problems.append(f"{path}: the first line is not #pragma once")
        if installed and lines[1] != LICENCE:
            problems.append(f"{path}: the second line is not {LICENCE}")
        if not any(line.startswith("//") and line != LICENCE for line in lines[1:5]):
            problems.append(f"{path}: no sentence at its top")

    assert not problems, "\n".join(problems)


def compile_alone(header: str) -> str:
    """Compiles a file that includes only `header`, twice. Returns the compiler's complaint."""
    flags = subprocess.run(["pkg-config", "--cflags", "fmt", "liburing", "libxxhash"],
                           capture_output=True, text=True, check=True).stdout
    source = BUILD / "headers" / f"{header.replace('/', '.')}.cc"
    source.parent.mkdir(exist_ok=True)
    source.write_text(f'#include "{header}"\n#include "{header}"\n')
    done = subprocess.run(
        ["ccache", "g++", "-std=c++23", "-O0", "-c", "-Wall", "-Wextra", "-Werror",
         "-Wno-missing-field-initializers", f"-I{ROOT}", f"-I{BUILD}/schema/generated",
         *shlex.split(flags), source, "-o", source.with_suffix(".o")],
        capture_output=True, text=True,
        env=os.environ | {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"})
    return f"{header}:\n{done.stderr}" if done.returncode else ""


@pytest.mark.timeout(1800)  # the compiler runs 90 times
def test_each_public_header_compiles_alone():
    headers = [path for path in read_tree() if path.startswith(("schema/", "kv/", "core/"))
               and path.endswith(".h") and "/internal/" not in path]
    assert len(headers) >= 10, "the list of headers looks wrong"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = [complaint for complaint in pool.map(compile_alone, headers) if complaint]

    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("path", "target", "wrong"),
    [
        ("core/tensor/box.h", "core/save/save_options.h", True),
        ("kv/store.cc", "core/tensor/tensor.h", True),
        ("tools/dump/show.cc", "kv/root/internal/root.h", True),
        ("kv/store.cc", "../core/tensor.h", True),
        ("core/load/load.cc", "cairn_schema/step_generated.h", False),
        ("tools/dump/show.cc", "cuda/backend.h", False),
        ("core/load/internal/load.cc", "core/step/internal/lookup.h", False),
    ],
)
def test_the_check_finds_wrong_directions_and_only_those(path, target, wrong):
    tree = {path: f'// a comment\n  #  include "{target}"\n#include <vector>\n'}

    assert bool(find_wrong_directions(tree)) == wrong


def test_the_check_finds_cycles():
    tree = {"kv/a.h": '#include "kv/b.h"\n', "kv/b.h": "", "kv/b.cc": '#include "kv/a.h"\n'}

    assert set(find_cycle(module_edges(tree))) == {"kv/a", "kv/b"}

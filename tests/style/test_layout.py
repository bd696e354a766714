"""The order of the folders, cycles between modules, and a header for every source file.

A module is a header and the source of the same name. A folder of core/ or cuda/ includes its
internal/ folder. What a folder may include is a table, so that a change of the order is a decision
and not an accident.
"""

import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("schema", "kv", "core", "cuda", "python", "tools", "bench")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SOURCE_SUFFIXES = (".cc", ".cu")

# Within a layer: a folder, and the folders of the same layer that it may include. The headers of
# kv/ and core/ that are not in a folder are the API of the layer. kv's are vocabulary for its own
# folders, so its sources are exempt; core's API is above its folders.
MAY_INCLUDE = {
    "kv/internal/io": {"kv"},
    "kv/internal/storage": {"kv", "kv/internal/io"},
    "kv/internal/s3": {"kv", "kv/internal/storage"},
    "kv/internal/rados": {"kv", "kv/internal/storage"},
    "kv/internal/storage/cache": {"kv", "kv/internal/io", "kv/internal/storage"},
    "kv/internal/table": {"kv", "kv/internal/storage"},
    "kv/internal/root": {"kv", "kv/internal/storage", "kv/internal/table"},
    "kv/internal/records": {"kv", "kv/internal/storage", "kv/internal/table", "kv/internal/root"},
    "kv/internal/segment": {"kv", "kv/internal/io", "kv/internal/storage", "kv/internal/root",
                            "kv/internal/records"},
    "kv/internal/parts": {"kv", "kv/internal/io", "kv/internal/storage", "kv/internal/records",
                          "kv/internal/segment"},
    "kv/internal/commit": {"kv", "kv/internal/io", "kv/internal/storage", "kv/internal/table",
                           "kv/internal/root", "kv/internal/records", "kv/internal/segment",
                           "kv/internal/parts"},
    "kv/internal": {"kv", "kv/internal/io", "kv/internal/storage", "kv/internal/table",
                    "kv/internal/root", "kv/internal/records", "kv/internal/segment",
                    "kv/internal/parts", "kv/internal/commit"},
    "kv/internal/copy": {"kv", "kv/internal", "kv/internal/io", "kv/internal/storage",
                         "kv/internal/table", "kv/internal/root", "kv/internal/records",
                         "kv/internal/segment", "kv/internal/commit"},
    "kv/internal/compact": {"kv", "kv/internal/storage", "kv/internal/table", "kv/internal/root",
                            "kv/internal/records", "kv/internal/segment", "kv/internal/commit"},
    "core/base": set(),
    "core/tensor": {"core/base"},
    "core/delta": {"core/base", "core/tensor"},
    "core/sharding": {"core/tensor"},
    "core/device": {"core/base", "core/tensor"},
    "core/state_dict": {"core/base", "core/tensor", "core/sharding", "core/device"},
    "core/ranks": {"core/base", "core/tensor", "core/sharding", "core/device"},
    "core/collectives": {"core/tensor", "core/sharding", "core/device", "core/state_dict",
                         "core/ranks"},
    "core/step": {"core/tensor", "core/state_dict", "core/delta"},
    "core/save": {"core/base", "core/tensor", "core/delta", "core/sharding", "core/device",
                  "core/state_dict", "core/step"},
    "core/load": {"core/base", "core/tensor", "core/delta", "core/sharding", "core/device",
                  "core/state_dict", "core/step", "core/ranks"},
    "core/inspect": {"core/base", "core/tensor", "core/delta", "core/state_dict", "core/step",
                     "core/load"},
    "core/edit": {"core/base", "core/state_dict", "core/step", "core/inspect"},
    "core/merge": {"core/base", "core/tensor", "core/state_dict", "core/step", "core/load",
                   "core/inspect"},
    "core": {"core/base", "core/tensor", "core/sharding", "core/device", "core/state_dict",
             "core/ranks", "core/step", "core/save", "core/load", "core/inspect", "core/edit",
             "core/merge"},
    "core/convert": {"core", "core/base", "core/tensor", "core/sharding", "core/device",
                     "core/state_dict", "core/step", "core/load"},
    "core/interop/safetensors": {"core", "core/base", "core/state_dict", "core/step",
                                 "core/tensor"},
    "core/interop/model_directory": {"core", "core/base", "core/state_dict", "core/step",
                                     "core/interop/safetensors"},
    "tools/common": set(),
    "tools/dump": {"tools/common"},
    "tools/admin": {"tools/common"},
    "tools/bench": {"tools/common"},
}
# Sources without a header: programs and the cases of one, modules of another runtime, and the build
# of a header where the toolkit is missing.
WITHOUT_HEADER = {"python/src/module.cc", "cuda/nccl_communicator_absent.cc"}


def read_tree() -> dict[str, str]:
    """The text of every source file by its path."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for layer in LAYERS
        for path in sorted((ROOT / layer).rglob("*"))
        if path.suffix in {".h", *SOURCE_SUFFIXES}
    }


def module_of(path: str) -> str:
    return os.path.splitext(path)[0]


def folder_of(path: str) -> str:
    folder = os.path.dirname(path)
    if folder.startswith(("core/", "cuda/")):
        folder = folder.removesuffix("/internal")
    return folder


def included(text: str, tree: dict[str, str]) -> list[str]:
    return [target for target in INCLUDE.findall(text) if target in tree]


def find_wrong_directions(tree: dict[str, str]) -> list[str]:
    problems = []
    for path, text in tree.items():
        folder = folder_of(path)
        for target in included(text, tree):
            other = folder_of(target)
            same_layer = other.split("/")[0] == folder.split("/")[0]
            if other == folder or not same_layer:
                continue
            if folder == "kv" and path.endswith(SOURCE_SUFFIXES):
                continue
            if folder in MAY_INCLUDE or other in MAY_INCLUDE:
                if other not in MAY_INCLUDE.get(folder, set()):
                    problems.append(f"{path}: {folder}/ may not include {target}")
    return problems


def find_cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that reach each other (Tarjan 1972), each sorted."""
    index, low, stack, cycles = {}, {}, [], []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(edges.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(group) > 1:
                cycles.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return cycles


def module_edges(tree: dict[str, str]) -> dict[str, set[str]]:
    edges = defaultdict(set)
    for path, text in tree.items():
        for target in included(text, tree):
            if module_of(target) != module_of(path):
                edges[module_of(path)].add(module_of(target))
    return edges


def test_folders_include_each_other_in_one_order():
    problems = find_wrong_directions(read_tree())

    assert not problems, "\n".join(problems)


def test_the_order_of_the_folders_has_no_cycle():
    assert find_cycles({folder: set(targets) for folder, targets in MAY_INCLUDE.items()}) == []


def test_every_folder_is_in_the_table():
    folders = {folder_of(path) for path in read_tree()}
    with_folders = {f for f in folders if f.startswith(("kv/", "core", "tools/"))}

    assert with_folders == set(MAY_INCLUDE)


def test_modules_do_not_include_each_other_in_a_cycle():
    cycles = find_cycles(module_edges(read_tree()))

    assert not cycles, "\n".join(", ".join(cycle) for cycle in cycles)


def test_every_source_has_a_header():
    tree = read_tree()
    missing = {path for path in tree
               if path.endswith(SOURCE_SUFFIXES) and module_of(path) + ".h" not in tree
               and not path.startswith(("tools/", "bench/"))}  # verbs of a program share one

    assert missing == WITHOUT_HEADER


@pytest.mark.parametrize(
    ("path", "target", "wrong"),
    [
        ("core/tensor/box.h", "core/save/save_options.h", True),
        ("core/save/internal/save.cc", "core/load/load_options.h", True),
        ("kv/io/internal/file.h", "kv/segment/internal/segment_writer.h", True),
        ("kv/base/options.h", "kv/io/internal/file.h", True),
        ("tools/dump/show.cc", "tools/bench/fio.h", True),
        ("core/load/internal/load.cc", "core/step/internal/lookup.h", False),
        ("kv/store.cc", "kv/internal/commit/commit.h", False),
        ("core/interop/safetensors/export.cc", "core/checkpoint_store.h", False),
    ],
)
def test_the_check_finds_wrong_directions_and_only_those(path, target, wrong):
    tree = {path: f'// a comment\n#include "{target}"\n', target: ""}

    assert bool(find_wrong_directions(tree)) == wrong


def test_the_check_finds_cycles():
    tree = {"kv/a.h": '#include "kv/b.h"\n', "kv/b.h": "", "kv/b.cc": '#include "kv/a.h"\n'}

    assert find_cycles(module_edges(tree)) == [["kv/a", "kv/b"]]

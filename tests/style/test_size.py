"""Limits on the size of files and functions of the product."""

import statistics
from pathlib import Path

import lizard
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("schema", "kv", "core", "cuda", "python", "tools", "bench", "examples")
SUFFIXES = {".h", ".cc", ".cu", ".py"}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_PARAMETERS = 6
MEDIAN_FUNCTION_LINES = 8  # the median function is shorter than this

# The Python API, whose parameters are keywords, and functions that mirror the signatures of torch.
MAY_HAVE_MANY_PARAMETERS = {
    ("python/cairn/_edit.py", "edit"),
    ("python/cairn/_open.py", "open"),
    ("python/cairn/hf/_load.py", "from_pretrained"),
    ("python/cairn/store.py", "load"),
    ("python/cairn/store.py", "save"),
    ("python/cairn/store.py", "save_async"),
    ("python/cairn/_load/step_reader.py", "read"),
    ("python/cairn/_save/streamed_saves.py", "writer"),
    ("python/cairn/_update/live_updates.py", "pull"),
    ("python/cairn/dcp/_writer.py", "__init__"),
    ("python/cairn/torch/_saver.py", "__init__"),
}


def product_files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in SUFFIXES]


@pytest.fixture(scope="module")
def functions():
    """(path, function) for every function of the product."""
    return [(str(path.relative_to(ROOT)), function)
            for path in product_files()
            for function in lizard.analyze_file(str(path)).function_list]


def parameter_count(function) -> int:
    own = [
        name for name in function.full_parameters if name.split(":")[0].strip() in {"self", "cls"}
    ]
    return function.parameter_count - len(own)


def length_of(function) -> int:
    return function.end_line - function.start_line + 1


def test_no_file_is_too_long():
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines())
               for path in product_files()}
    too_long = {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES}

    assert len(lengths) > 300, "the list of files looks wrong"
    assert not too_long


def test_no_function_is_too_long(functions):
    too_long = [f"{path}: {function.name} has {length_of(function)} lines"
                for path, function in functions if length_of(function) > MAX_FUNCTION_LINES]

    assert not too_long, "\n".join(too_long)


def test_the_median_function_is_short(functions):
    assert len(functions) > 2000, "the list of functions looks wrong"
    assert statistics.median(length_of(f) for _, f in functions) < MEDIAN_FUNCTION_LINES


def test_no_function_has_too_many_parameters(functions):
    too_many = [f"{path}: {function.name} has {parameter_count(function)}"
                for path, function in functions
                if parameter_count(function) > MAX_PARAMETERS
                and (path, function.name) not in MAY_HAVE_MANY_PARAMETERS]

    assert not too_many, "\n".join(too_many)

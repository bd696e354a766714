"""The corpora of the fuzzers are small, and every fuzzer has one."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUZZ = ROOT / "tests" / "fuzz"
MAX_FILES = 60  # per fuzzer, as in tools/fuzz.sh
MAX_BYTES = 300_000  # of all files together


def fuzzers() -> set[str]:
    names = {path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.cc")}
    return names - {"support"}


def test_every_fuzzer_has_a_corpus():
    assert {path.name for path in (FUZZ / "corpus").iterdir()} == fuzzers()


def test_the_corpora_are_small():
    files = [path for path in (FUZZ / "corpus").rglob("*") if path.is_file()]
    counts = {name: len(list((FUZZ / "corpus" / name).iterdir())) for name in fuzzers()}

    assert {name for name, count in counts.items() if not 0 < count <= MAX_FILES} == set()
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES


def test_every_fuzzer_is_built():
    text = (FUZZ / "CMakeLists.txt").read_text()

    assert {name for name in fuzzers() if f"cairn_add_fuzzer({name}" not in text} == set()

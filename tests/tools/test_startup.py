"""What the programs load and read before their first line: shared libraries, and records."""

import hashlib
import os

import numpy as np

from tool_programs import into_store


def loaded_libraries(tmp_path, run, *words, **environment):
    """Runs the program and returns the names of all shared libraries that it has loaded."""
    settings = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(tmp_path / "loads")}
    run(*words, env={**os.environ, **settings, **environment})
    (log,) = tmp_path.glob("loads.*")
    lines = [line for line in log.read_text().splitlines() if "calling init: " in line]
    return {line.rsplit("/", 1)[1] for line in lines}


def test_a_store_in_a_directory_does_not_load_libcurl(dump, two_steps, tmp_path):
    words = ("diff", f"{two_steps}@100", f"{two_steps}@200")
    libraries = loaded_libraries(tmp_path, dump, *words)

    assert any(name.startswith("libc.so") for name in libraries)
    assert not any(name.startswith(("libcurl", "libssl", "libcrypto")) for name in libraries)


def test_an_s3_address_loads_libcurl(dump, tmp_path):
    address = "s3://bucket/store?endpoint=http://127.0.0.1:1"  # no server is needed to load it
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    libraries = loaded_libraries(tmp_path, dump, "steps", address, CAIRN_S3_TIMEOUT="1", **keys)

    assert any(name.startswith("libcurl.so.4") for name in libraries)


def test_no_verb_reads_all_of_a_step_before_its_first_line(dump, tmp_path):
    """The tables of the step are damaged after the records of the first keys.

    A verb that prints rows when it reads them prints some before it reports the damage.
    """
    store = tmp_path / "store"
    names = [hashlib.sha512(str(i).encode()).hexdigest() for i in range(20_000)]
    into_store(store, {name: np.full(1, 1, np.int8) for name in names})
    (table,) = (store / "tables").iterdir()
    first = min(names)

    damaged = bytearray(table.read_bytes())
    tensors = len(damaged) // 4  # the records of tensors, and then those of chunks
    damaged[tensors : tensors + 1000] = bytes(1000)
    table.write_bytes(damaged)

    for verb in ("keys", "chunks"):
        finished = dump(verb, store, status=2)
        assert table.name in finished.err
        assert first in finished.out
    for verb in ("keys", "chunks", "show"):
        assert dump(verb, store, first).status == 0

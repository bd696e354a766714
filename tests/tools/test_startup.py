"""Which shared libraries the programs load."""

import os


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

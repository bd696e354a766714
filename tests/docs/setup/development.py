# page
save_steps("STORE", (100, 200))
subprocess.run(["cp", "-r", "STORE", "OTHER"], check=True)
# before command 6
newest = min(pathlib.Path("STORE/roots").iterdir())
damaged = bytearray(newest.read_bytes())
damaged[len(damaged) // 2] ^= 1
newest.write_bytes(damaged)
# after the page
with cairn.open("STORE") as rebuilt:
    assert rebuilt.steps() == [100, 200]

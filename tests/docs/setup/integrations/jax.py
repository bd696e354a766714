# page
PLACES = {'"/shared/runs': '"runs'}
# before block 3
step = 300
# after the page
assert restored["step"] == 100 and bool((state["params"]["kernel"] == 1).all())
with cairn.open("runs/jax") as opened:
    assert opened.tags() == {"from-orbax": 7}

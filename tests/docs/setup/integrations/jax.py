# page
PLACES = {'"/shared/runs': '"runs'}
# before block 3
step = 300
# after the page
assert restored["step"] == 7 and bool((state["params"]["kernel"] == 1).all())
with cairn.open("runs/jax") as opened:
    assert opened.tags() == {"from-orbax": 7}
    assert torch.equal(opened.read("params.kernel", step=7)["params"]["kernel"], torch.ones(64, 32))
    assert opened.read("step", step=100) == {"step": 100}

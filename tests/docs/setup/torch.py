# page
Transformer = Net
state, step = {"model": model.state_dict()}, 50
# before block 3
state = {"model": model, "optimizer": optimizer, "epoch": 3}
# after the page
assert not any(parameter.is_meta for parameter in model.parameters())

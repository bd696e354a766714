# page
state, step = {"model": model.state_dict()}, 50
# before block 3
state = {"model": model, "optimizer": optimizer, "epoch": 3}

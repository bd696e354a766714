# page
state = {"model": model.state_dict()}
# before block 3
state = {"model": model, "optimizer": optimizer, "epoch": 3}

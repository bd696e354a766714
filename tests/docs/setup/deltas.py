# page
state = {"model": {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}}
# before block 2
step += 1

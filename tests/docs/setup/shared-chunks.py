# page
model_state = model.state_dict()
ema_state = {name: tensor.clone() for name, tensor in model_state.items()}

# page
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
rng = torch.get_rng_state()
# before block 2
state = {"model": model}
encoder_state = {"model": {"encoder": encoder.state_dict()}}

# page
job_model = Net()
def make_state():
    return {"model": {name: tensor.clone() for name, tensor in job_model.state_dict().items()}}

save_steps("runs/gpt", (100, 200))
pending = [300]
wait = cairn.Store.wait

# The example follows a job for hours; here the job saves once more, and then nothing for a second.
def wait_a_second(follower, after, timeout):
    if pending:
        with cairn.open("runs/gpt", mode="a") as job:
            job_model.norm.weight.data += 1
            job.save(pending.pop(), make_state())
    return wait(follower, after=after, timeout=1)

cairn.Store.wait = wait_a_second

# page
from safetensors.torch import save_file
import safetensors
pathlib.Path("models/qwen").mkdir(parents=True)
pathlib.Path("models/qwen/config.json").write_text("{}")
save_file(model.state_dict(), "models/qwen/model.safetensors", {"format": "pt"})
command = "kv-admin import runs/sft --step 900 models/qwen --format hf"
subprocess.run(command.split(), check=True, capture_output=True,
               env={"PATH": str(ROOT / "build" / "bin")})
with cairn.open("runs/gpt", mode="a") as store:
    store.save(41, {"model": model.state_dict()})
    train_one_step()
    store.save(42, {"model": model.state_dict()})
state = {"model." + name: tensor for name, tensor in model.state_dict().items()}

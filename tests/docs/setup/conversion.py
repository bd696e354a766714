# page
os.mkdir("hf")
from safetensors.torch import save_file
save_file(model.state_dict(), "hf/weights.safetensors")
files = {name: "weights.safetensors" for name in model.state_dict()}
with open("hf/model.safetensors.index.json", "w") as file:
    json.dump({"metadata": {}, "weight_map": files}, file)
cairn.convert.save_rules("rules.json", [cairn.convert.rename({"^norm": "ln"})])
# before block 2
from hf_models import make

make("mixtral").save_pretrained("models/mixtral")
config = make("mixtral").config
files = list(pathlib.Path("models/mixtral").glob("*.safetensors"))
subprocess.run([ROOT / "build/bin/kv-admin", "import", "runs/mixtral", "--step", "0", *files],
               check=True, capture_output=True)

# page
os.mkdir("hf")
from safetensors.torch import save_file
save_file(model.state_dict(), "hf/weights.safetensors")
files = {name: "weights.safetensors" for name in model.state_dict()}
with open("hf/model.safetensors.index.json", "w") as file:
    json.dump({"metadata": {}, "weight_map": files}, file)
cairn.convert = __import__("cairn.convert").convert
cairn.convert.save_rules("rules.json", [cairn.convert.rename({"^norm": "ln"})])

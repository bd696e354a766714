# page
from hf_models import make, tokenizer as make_tokenizer
from test_hf_diffusers import ddpm

model, tokenizer, pipeline = make("llama"), make_tokenizer(), ddpm()
model.save_pretrained("models/qwen")
tokenizer.save_pretrained("models/qwen")
pathlib.Path("corpus.txt").write_text("abcdefghij " * 500)
# after the page
assert type(adapted).__name__.startswith("PeftModel")

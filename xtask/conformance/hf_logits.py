"""Runs token ids through transformers in float32 and prints the logits of every position, as JSON.

Usage: hf_logits.py MODEL INPUT.json [FOLDER]

MODEL is a Hugging Face folder or a GGUF file; INPUT.json is a list of token ids, or a text that the model's tokenizer encodes.
The configuration is FOLDER's, if one is named: of GGUF metadata transformers reads only some.
Prints {"n_vocab", "ids": [id...], "top1": [id...], "logits": [[logit...]...]}, one entry a position.
"""

import json
import sys
from pathlib import Path

try:
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    sys.exit(f"{error}\nneeded: pip install torch transformers safetensors gguf accelerate")


def load(path, config_folder):
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    if config_folder is not None:
        options["config"] = AutoConfig.from_pretrained(config_folder.absolute())
    if path.suffix == ".gguf":
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **options)
    return AutoModelForCausalLM.from_pretrained(path, **options)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    model_path, input_path, *config_folder = map(Path, sys.argv[1:])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(2)
    ids = json.loads(input_path.read_text())
    if isinstance(ids, str):
        ids = AutoTokenizer.from_pretrained(model_path.absolute())(ids)["input_ids"]
    model = load(model_path.absolute(), *(config_folder or [None])).eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].float().contiguous()
    report = {"n_vocab": logits.shape[1], "ids": ids, "top1": logits.argmax(-1).tolist(), "logits": logits.tolist()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()

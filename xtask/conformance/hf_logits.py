"""Runs token ids through transformers in float32 and prints the logits of every position, as JSON.

Usage: hf_logits.py MODEL IDS.json

MODEL is a Hugging Face folder or a GGUF file; IDS.json is a list of token ids.
Prints {"n_vocab", "top1": [id...], "logits": [[logit...]...]}, one entry a position.
"""

import json
import sys
from pathlib import Path

try:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
except ImportError as error:
    sys.exit(f"{error}\nneeded: pip install torch transformers safetensors gguf accelerate")


def load(path):
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    if path.suffix == ".gguf":
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **options)
    return AutoModelForCausalLM.from_pretrained(path, **options)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    model_path, ids_path = map(Path, sys.argv[1:])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(2)
    ids = torch.tensor([json.loads(ids_path.read_text())])
    model = load(model_path.absolute()).eval()
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0].float().contiguous()
    report = {"n_vocab": logits.shape[1], "top1": logits.argmax(-1).tolist(), "logits": logits.tolist()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()

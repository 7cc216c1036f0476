"""Runs token ids through llama.cpp and prints what it predicts at every position, as JSON.

Usage: llama_top1.py MODEL.gguf IDS.json [--as-stored]

IDS.json is a list of token ids. No tokenizer is needed: a file whose tokenizer.ggml.model is "none" works.
llama.cpp rounds activations to the type of the weights they meet. So that only the arithmetic is compared, 16-bit and MXFP4
weights are first widened to float32 in a temporary copy, which changes no value; --as-stored runs the file as it is.

Prints {"n_vocab", "top1": [id...], "top5": [[[id, logit]...]...], "logits": [[logit...]...]}, one entry a position.
"""

import argparse
import ctypes
import json
import sys
import tempfile
from pathlib import Path

try:
    import gguf
    import llama_cpp
    import numpy as np
except ImportError as error:
    sys.exit(f"{error}\nneeded: pip install llama-cpp-python gguf numpy")

N_THREADS = 2
N_CTX = 512
# ggml_type F32: keys and values are kept unrounded.
F32 = 0

Type = gguf.GGMLQuantizationType
WIDENED = (Type.F16, Type.BF16, Type.MXFP4)


def widen(source, target):
    """Copies a GGUF file with every metadata entry, its 16-bit and MXFP4 tensors as float32."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        # The writer puts these in itself.
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        if tensor.tensor_type in WIDENED:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            shape = [int(n) for n in reversed(tensor.shape)]
            writer.add_tensor(tensor.name, values.reshape(shape))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Log:
    """Keeps llama.cpp's log, to be shown only if something fails."""

    def __init__(self):
        self.text = ""
        # Kept here: llama.cpp calls it for as long as the process runs.
        self.callback = llama_cpp.llama_log_callback(self.add)
        llama_cpp.llama_log_set(self.callback, ctypes.c_void_p(0))

    def add(self, _level, text, _data):
        self.text += text.decode("utf-8", "replace")

    def fail(self, what):
        lines = [line for line in self.text.splitlines() if "error" in line.lower() or "fail" in line.lower()]
        sys.exit("\n".join([what, *lines[-3:]]))


def set_known(params, **values):
    """Sets the fields that this version of llama.cpp has."""
    for name, value in values.items():
        if hasattr(params, name):
            setattr(params, name, value)


def logits(path, ids, log):
    """float32 [positions, n_vocab]"""
    model_params = llama_cpp.llama_model_default_params()
    set_known(model_params, n_gpu_layers=0, use_extra_bufts=False)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
    if not model:
        log.fail(f"llama.cpp cannot load {path}")
    params = llama_cpp.llama_context_default_params()
    set_known(
        params, n_ctx=N_CTX, n_batch=N_CTX, n_ubatch=N_CTX, n_threads=N_THREADS, n_threads_batch=N_THREADS,
        flash_attn_type=0, flash_attn=False, type_k=F32, type_v=F32, swa_full=True,
        n_outputs_max=N_CTX,
    )
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        log.fail("llama.cpp cannot make a context")
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i] = token
        batch.pos[i] = i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = True
    if llama_cpp.llama_decode(context, batch) != 0:
        log.fail("llama.cpp cannot run the ids")
    rows = [
        np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), shape=(n_vocab,)).copy()
        for i in range(len(ids))
    ]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("ids", type=Path)
    parser.add_argument("--as-stored", action="store_true")
    args = parser.parse_args()
    ids = json.loads(args.ids.read_text())
    if len(ids) > N_CTX:
        sys.exit(f"{len(ids)} ids, at most {N_CTX}")
    log = Log()
    llama_cpp.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model
        if not args.as_stored:
            path = Path(folder) / "widened.gguf"
            widen(args.model, path)
        rows = logits(path, ids, log)
    best = np.argsort(-rows, axis=1, kind="stable")[:, :5]
    report = {
        "n_vocab": rows.shape[1],
        "top1": [int(row[0]) for row in best],
        "top5": [[[int(i), float(values[i])] for i in row] for row, values in zip(best, rows)],
        "logits": [[float(logit) for logit in row] for row in rows],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()

"""Measures llama.cpp on one GGUF file, in this process, and prints the result as JSON.

Usage: llama_bench.py speed MODEL.gguf --threads N --prompt P --decode D
       llama_bench.py start MODEL.gguf --threads N --text T
       llama_bench.py next  MODEL.gguf --threads N --text T

speed loads the model, runs the whole prompt and one step to warm up, forgets them, then measures the prompt and D greedy
steps after it; its prompt is token i * 7919 % n_vocab at position i, as in `larql bench`.
start measures from before the file is opened until the first greedy token of the text is known.
next prints the ids of the text and the five most likely next tokens with their logits.

Everything is llama.cpp's default except threads and batch sizes; so its own packed weights and flash attention are on where
it chooses them. The greedy choice is numpy's argmax, which costs less than llama.cpp's sampler.
"""

import argparse
import ctypes
import json
import resource
import sys
import time

try:
    import llama_cpp
    import numpy as np
except ImportError as error:
    sys.exit(f"{error}\nneeded: pip install llama-cpp-python numpy")

N_BATCH = 512
N_TOP = 5


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


class Model:
    """A loaded file and one sequence."""

    def __init__(self, path, n_threads, n_ctx, log):
        self.log = log
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            log.fail(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = N_BATCH
        params.n_threads = params.n_threads_batch = n_threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            log.fail("llama.cpp cannot make a context")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.batch = llama_cpp.llama_batch_init(N_BATCH, 0, 1)
        self.n_past = 0

    def run(self, ids):
        """Runs ids after what was run before and returns the logits of the last one."""
        for start in range(0, len(ids), N_BATCH):
            part = ids[start:start + N_BATCH]
            self.batch.n_tokens = len(part)
            for i, token in enumerate(part):
                self.batch.token[i] = token
                self.batch.pos[i] = self.n_past + i
                self.batch.n_seq_id[i] = 1
                self.batch.seq_id[i][0] = 0
                self.batch.logits[i] = start + i + 1 == len(ids)
            if llama_cpp.llama_decode(self.context, self.batch) != 0:
                self.log.fail(f"llama.cpp cannot run {len(part)} tokens at position {self.n_past}")
            self.n_past += len(part)
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, shape=(self.n_vocab,))

    def forget(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.n_past = 0

    def tokenize(self, text):
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 8))()
        n_ids = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, False)
        if n_ids < 1:
            self.log.fail("llama.cpp cannot tokenize the text")
        return list(ids[:n_ids])


def speed(args, log):
    # Beyond the steps that are run, so that the context never has to move.
    model = Model(args.model, args.threads, args.prompt + args.decode + 8, log)
    prompt = [i * 7919 % model.n_vocab for i in range(args.prompt)]
    model.run([int(np.argmax(model.run(prompt)))])
    model.forget()
    start = time.perf_counter()
    token = int(np.argmax(model.run(prompt)))
    prefill_s = time.perf_counter() - start
    first = token
    start = time.perf_counter()
    for _ in range(args.decode):
        token = int(np.argmax(model.run([token])))
    decode_s = time.perf_counter() - start
    return {
        "prefill_tok_s": args.prompt / prefill_s,
        "decode_tok_s": args.decode / decode_s,
        "first_token": first,
    }


def start(args, log):
    begin = time.perf_counter()
    model = Model(args.model, args.threads, N_BATCH, log)
    token = int(np.argmax(model.run(model.tokenize(args.text))))
    return {"first_token_s": time.perf_counter() - begin, "first_token": token}


def next_token(args, log):
    model = Model(args.model, args.threads, N_BATCH, log)
    ids = model.tokenize(args.text)
    logits = model.run(ids)
    best = np.argsort(-logits, kind="stable")[:N_TOP]
    return {"ids": ids, "top": [{"id": int(i), "logit": float(logits[i])} for i in best]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["speed", "start", "next"])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--text", default="")
    args = parser.parse_args()
    log = Log()
    llama_cpp.llama_backend_init()
    report = {"speed": speed, "start": start, "next": next_token}[args.task](args, log)
    # Linux counts in KiB.
    report["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(report))


if __name__ == "__main__":
    main()

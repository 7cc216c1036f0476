"""Makes tiny random checkpoints with the numbers transformers computes from them in float32.

Usage: make_golden.py OUTDIR [--seed N] [NAME...]
       make_golden.py OUTDIR --peers [--seed N] [NAME...]
       make_golden.py --noise FOLDER...

The first form writes OUTDIR/NAME/ for every family (or those named): a checkpoint in Hugging Face layout, golden.safetensors,
noise.json and, where one exists, config.legacy.json. The second form writes only checkpoint and golden.safetensors, for the
families of which llama.cpp cannot express every fact of the first form's model: the same with the fact it can express.
The third form measures noise.json anew beside existing checkpoints.
README.md beside this file describes the files; it also says which versions the committed ones were made with.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from statistics import NormalDist

try:
    import torch
    import transformers as tf
    from safetensors.torch import load_file, save_file
    from torch.overrides import TorchFunctionMode
except ImportError as error:
    sys.exit(f"{error}\nneeded: pip install torch transformers==5.24.* safetensors")

# Odd on purpose: no width is a multiple of 256, most are none of 32, and heads * head_dim differs from d_model.
D_MODEL, D_MLP, N_LAYERS, N_HEADS, N_KV_HEADS, D_HEAD, D_VOCAB = 56, 104, 4, 4, 2, 24, 300
# Shorter than the prompt, so that a missing window shows.
WINDOW = 9
PROMPT_LEN, GREEDY_FROM, GREEDY_LEN = 27, 11, 12
BOS = 2

BASE = dict(
    vocab_size=D_VOCAB, hidden_size=D_MODEL, intermediate_size=D_MLP, num_hidden_layers=N_LAYERS,
    num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS, max_position_embeddings=256,
    pad_token_id=0, bos_token_id=BOS, eos_token_id=1,
)
# For the families whose code insists on d_model = heads * head_dim.
SQUARE = {**BASE, "hidden_size": N_HEADS * D_HEAD}
# For the families with latent attention, which has no separate K/V heads.
LATENT = {**BASE, "num_key_value_heads": N_HEADS}


def rope(theta=10000.0, kind="default", **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def every(period, first="sliding_attention"):
    """Layer types: the last of each `period` layers has full attention, the others `first`."""
    return ["full_attention" if (i + 1) % period == 0 else first for i in range(N_LAYERS)]


YARN = dict(factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=64)
LINEAR = every(2, "linear_attention")
GRANITE = dict(embedding_multiplier=6.0, residual_multiplier=0.22, attention_multiplier=0.11, logits_scaling=3.0)
MLA = dict(
    kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20, moe_intermediate_size=48,
    num_experts_per_tok=2, topk_group=1, n_group=1,
)
DEEPSEEK = dict(MLA, n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1, rope_parameters=rope())
GEMMA4 = dict(
    BASE, head_dim=D_HEAD, global_head_dim=D_HEAD + 8, sliding_window=WINDOW, vocab_size_per_layer_input=D_VOCAB,
    final_logit_softcapping=5.0,
)
GEMMA4_WIDE = dict(
    GEMMA4, num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0,
    layer_types=["sliding_attention"] * (N_LAYERS - 2) + ["full_attention"] * 2,
)

FAMILIES = {
    "arcee": ("Arcee", dict(BASE, head_dim=D_HEAD, rope_parameters=rope(), tie_word_embeddings=False)),
    "cohere2": ("Cohere2", dict(BASE, sliding_window=WINDOW, logit_scale=0.25, layer_types=every(4), rope_parameters=rope(50000.0))),
    "deepseek-v2": ("DeepseekV2", dict(LATENT, **DEEPSEEK, q_lora_rank=None, topk_method="greedy", routed_scaling_factor=1.3, norm_topk_prob=False)),
    "deepseek-v3": ("DeepseekV3", {**LATENT, **DEEPSEEK, "q_lora_rank": 40, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True}),
    "gemma": ("Gemma", dict(BASE, head_dim=D_HEAD, rope_parameters=rope())),
    "gemma2": ("Gemma2", dict(BASE, head_dim=D_HEAD, sliding_window=WINDOW, query_pre_attn_scalar=40, attn_logit_softcapping=5.0, final_logit_softcapping=6.0, rope_parameters=rope())),
    "gemma3": ("Gemma3Text", dict(
        BASE, head_dim=D_HEAD, sliding_window=WINDOW, query_pre_attn_scalar=40, layer_types=every(3),
        rope_parameters={"full_attention": rope(1e6), "sliding_attention": rope()})),
    "gemma3n": ("Gemma3nText", dict(
        SQUARE, head_dim=D_HEAD, sliding_window=WINDOW, vocab_size_per_layer_input=D_VOCAB, hidden_size_per_layer_input=16,
        num_kv_shared_layers=2, laurel_rank=8, altup_num_inputs=3, layer_types=every(2),
        activation_sparsity_pattern=[0.9] + [0.0] * (N_LAYERS - 1))),
    "gemma4-dense": ("Gemma4Text", GEMMA4_WIDE),
    "gemma4-e": ("Gemma4Text", dict(GEMMA4, layer_types=every(2), hidden_size_per_layer_input=16, num_kv_shared_layers=2)),
    "gemma4-moe": ("Gemma4Text", dict(GEMMA4_WIDE, enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=48)),
    "glm4": ("Glm4", dict(BASE, head_dim=D_HEAD, partial_rotary_factor=0.5, attention_bias=True, rope_parameters=rope(partial_rotary_factor=0.5))),
    "gpt-oss": ("GptOss", dict(BASE, head_dim=D_HEAD + 8, sliding_window=WINDOW, num_local_experts=6, num_experts_per_tok=2, layer_types=every(2), rope_parameters=rope(150000.0, "yarn", **YARN))),
    "gpt2": ("GPT2", dict(vocab_size=D_VOCAB, n_embd=N_HEADS * D_HEAD, n_layer=N_LAYERS, n_head=N_HEADS, n_positions=128, bos_token_id=BOS, eos_token_id=1)),
    "granite": ("Granite", dict(SQUARE, **GRANITE, rope_parameters=rope())),
    "granitemoe": ("GraniteMoe", dict(SQUARE, **GRANITE, num_local_experts=6, num_experts_per_tok=2, rope_parameters=rope())),
    "kimi-linear": ("KimiLinear", dict(
        LATENT, **MLA, num_local_experts=6, linear_head_dim=12, linear_num_heads=N_HEADS + 1, linear_conv_kernel_dim=4, layer_types=LINEAR)),
    "llama": ("Llama", dict(BASE, head_dim=D_HEAD, rms_norm_eps=1e-5, rope_parameters=rope(500000.0), tie_word_embeddings=False)),
    "llama-rope3": ("Llama", dict(
        BASE, head_dim=D_HEAD, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters=rope(500000.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32))),
    "llama-yarn": ("Llama", dict(
        BASE, head_dim=D_HEAD, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=rope(10000.0, "yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0))),
    "mistral-sliding": ("Mistral", dict(BASE, head_dim=D_HEAD, sliding_window=WINDOW, rope_parameters=rope())),
    "mixtral": ("Mixtral", dict(BASE, head_dim=D_HEAD, num_local_experts=6, num_experts_per_tok=2, sliding_window=None, rope_parameters=rope(1e6))),
    "olmo2": ("Olmo2", dict(SQUARE, rope_parameters=rope(500000.0))),
    "olmoe": ("Olmoe", {**SQUARE, "intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False, "clip_qkv": None, "rope_parameters": rope()}),
    "phi": ("Phi", {**SQUARE, "num_key_value_heads": N_HEADS, "partial_rotary_factor": 0.5, "rope_parameters": rope(partial_rotary_factor=0.5)}),
    "phi3": ("Phi3", dict(SQUARE, partial_rotary_factor=1.0, rope_parameters=rope(), sliding_window=None)),
    "qwen2": ("Qwen2", dict(SQUARE, rope_parameters=rope(1e6), tie_word_embeddings=True, use_sliding_window=False)),
    "qwen2-moe": ("Qwen2Moe", dict(
        SQUARE, moe_intermediate_size=48, shared_expert_intermediate_size=64, num_experts=6, num_experts_per_tok=2,
        norm_topk_prob=False, decoder_sparse_step=1, rope_parameters=rope(1e6))),
    "qwen3": ("Qwen3", dict(BASE, head_dim=D_HEAD, rope_parameters=rope(1e6), tie_word_embeddings=True)),
    "qwen3-moe": ("Qwen3Moe", dict(
        BASE, head_dim=D_HEAD, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[1], rope_parameters=rope(1e6))),
    "qwen3-next": ("Qwen3Next", dict(
        BASE, head_dim=D_HEAD, linear_key_head_dim=12, linear_value_head_dim=20, linear_num_key_heads=2, linear_num_value_heads=4,
        moe_intermediate_size=48, shared_expert_intermediate_size=40, num_experts=6, num_experts_per_tok=2, layer_types=LINEAR,
        rope_parameters=rope(partial_rotary_factor=0.25))),
    "smollm3": ("SmolLM3", dict(SQUARE, rope_parameters=rope(1e6), no_rope_layers=[1, 1, 1, 0])),
    "stablelm": ("StableLm", dict(
        BASE | {"hidden_size": 72}, use_qkv_bias=True, partial_rotary_factor=0.25, rope_parameters=rope(partial_rotary_factor=0.25),
        tie_word_embeddings=False)),
    "starcoder2": ("Starcoder2", dict(SQUARE, sliding_window=WINDOW, use_bias=True, rope_parameters=rope())),
}

# What replaces the facts of a family's model that llama.cpp has no word for, so that it computes the same as transformers.
PEERS = {
    # The attention scale is head_dim^-0.5.
    "gemma2": dict(query_pre_attn_scalar=D_HEAD),
    "gemma3": dict(query_pre_attn_scalar=D_HEAD),
    # The sizes of the published models are built in, and 20 layers have keys and values of their own. So is the share of
    # features that the first layers cut off, by the deviation of a sample: (n / (n - 1))^0.5 of the population's.
    "gemma3n": dict(
        altup_num_inputs=4, laurel_rank=64, hidden_size_per_layer_input=256, num_kv_shared_layers=0,
        activation_sparsity_pattern=[NormalDist().cdf(NormalDist().inv_cdf(0.95) * (D_MLP / (D_MLP - 1)) ** 0.5)] * N_LAYERS),
    # The ends of the ramp are whole dimensions.
    "gpt-oss": dict(rope_parameters=rope(150000.0, "yarn", **{**YARN, "truncate": True})),
    "gpt-oss-mxfp4": dict(hidden_size=64, intermediate_size=96, rope_parameters=rope(150000.0, "yarn", **{**YARN, "truncate": True})),
    # The linear layers have as many heads as the others, and their queries and keys the epsilon of the norms.
    "kimi-linear": dict(linear_num_heads=N_HEADS, rms_norm_eps=1e-6),
    "mistral-sliding": dict(sliding_window=None),
    "olmoe": dict(num_key_value_heads=N_HEADS),
    # Every layer has experts.
    "qwen3-moe": dict(mlp_only_layers=[]),
    # Keys and values of the linear layers have one width.
    "qwen3-next": dict(linear_value_head_dim=12),
    "starcoder2": dict(sliding_window=None),
}

# The magnitudes of a 4-bit float, by its lower three bits; the fourth is the sign.
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FP4_BLOCK = 32
FP4_SCALE_BIAS = 127

# Families whose older files leave the layer types to the class.
WITHOUT_LAYER_TYPES = ("gemma2", "qwen2", "qwen2_moe", "qwen3")

# Buffers that a checkpoint stores beside its parameters.
STORED_BUFFERS = ("e_score_correction_bias", "layer_scalar")


class Float64(TorchFunctionMode):
    """Runs code that asks for float32 in float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()

        def wider(value):
            return torch.float64 if value is torch.float32 else value

        return func(*map(wider, args), **{name: wider(value) for name, value in (kwargs or {}).items()})


def randomize(model, generator):
    """Makes every parameter matter, then rounds it to what the file will hold."""
    stored = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(STORED_BUFFERS)]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
            else:
                parameter.mul_(3.0 if "embed" in name or "wte" in name else 4.0)
        for _, buffer in stored:
            buffer.add_(torch.randn(buffer.shape, generator=generator) * 0.2)
        for tensor in [*model.parameters(), *(buffer for _, buffer in stored)]:
            tensor.copy_(tensor.to(torch.bfloat16).float())


def pack_fp4(parameter):
    """Rounds experts [n, inputs, outputs] to blocks of 4-bit floats; blocks [n, outputs, inputs / 32, 16] and their scales."""
    rows = parameter.detach().transpose(1, 2)
    blocks = rows.reshape(*rows.shape[:2], -1, FP4_BLOCK)
    exponents = (blocks.abs().amax(-1).clamp_min(1e-30) / FP4[-1]).log2().ceil()
    scaled = blocks / exponents.exp2()[..., None]
    codes = (scaled.abs()[..., None] - FP4).abs().argmin(-1)
    values = FP4[codes] * scaled.sign() * exponents.exp2()[..., None]
    with torch.no_grad():
        parameter.copy_(values.reshape(rows.shape).transpose(1, 2))
    codes = codes + (scaled < 0) * 8
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return packed, (exponents + FP4_SCALE_BIAS).to(torch.uint8)


def pack_experts(model):
    """Rounds every expert of the model; the tensors that a file holds instead, by the names of those they replace."""
    packed = {}
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed[name] = dict(zip((name + "_blocks", name + "_scales"), pack_fp4(parameter)))
    return packed


def save_packed(folder, packed):
    """Puts packed experts into a checkpoint that has been saved."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, pair in packed.items():
        del tensors[name]
        tensors.update({part: tensor.contiguous() for part, tensor in pair.items()})
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def run(model, ids):
    """Logits [positions, d_vocab] and the hidden states, one [positions, d_model] a stage."""
    with torch.no_grad():
        out = model(ids, output_hidden_states=True, use_cache=False)
    return out.logits[0], [state[0] for state in out.hidden_states]


def continue_greedily(model, ids):
    """The arg-max continuation of the first ids, recomputed from the start for every token."""
    tokens = ids[:, :GREEDY_FROM]
    with torch.no_grad():
        for _ in range(GREEDY_LEN):
            best = model(tokens, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, best], 1)
    return tokens[0, GREEDY_FROM:]


def distance(ours, reference):
    """max |ours - reference| / max |reference|"""
    ours, reference = ours.double(), reference.double()
    return ((ours - reference).abs().max() / reference.abs().max()).item()


def write_noise(folder):
    """Measures how far the reference itself moves between float32 and float64."""
    ids = load_file(folder / "golden.safetensors")["input_ids"].long()[None]

    def load(dtype):
        model = tf.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        )
        return model.to(dtype).eval()

    logits, states = run(load(torch.float32), ids)
    with Float64():
        exact_logits, exact_states = run(load(torch.float64), ids)
    if exact_logits.dtype != torch.float64:
        sys.exit(f"{folder}: the float64 run came back as {exact_logits.dtype}")
    noise = {
        "logits": distance(logits, exact_logits),
        "hidden_states": [distance(*pair) for pair in zip(states, exact_states)],
    }
    (folder / "noise.json").write_text(json.dumps(noise, indent=1) + "\n")
    return noise


def older_spelling(config):
    """The same configuration as files made before transformers 5 state it, or None where there is no such spelling."""
    older = dict(config)
    parameters = older.pop("rope_parameters", None)
    if parameters is None or older["model_type"] in ("gemma3n_text", "gemma4_text"):
        return None
    older["torch_dtype"] = older.pop("dtype")
    older["transformers_version"] = "4.51.0"
    if "full_attention" in parameters:
        older["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
        older.pop("_sliding_window_pattern", None)
        older["sliding_window_pattern"] = older.pop("layer_types").index("full_attention") + 1
    if older["model_type"] in WITHOUT_LAYER_TYPES:
        older.pop("layer_types")
    scaling = dict(parameters)
    older["rope_theta"] = scaling.pop("rope_theta")
    if "partial_rotary_factor" in scaling:
        older["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    older["rope_scaling"] = None if scaling == {"rope_type": "default"} else scaling
    return older


def make(name, out, seed, peers):
    is_packed = name.endswith("-mxfp4")
    config_class, options = FAMILIES[name.removesuffix("-mxfp4")]
    if peers:
        options = {**options, **PEERS[name]}
    config = getattr(tf, config_class + "Config")(**options)
    torch.manual_seed(seed * 1000 + len(name))
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    randomize(model, generator)
    packed = pack_experts(model) if is_packed else {}
    model.eval()
    ids = torch.randint(3, D_VOCAB, (1, PROMPT_LEN), generator=generator)
    ids[0, 0] = BOS
    logits, states = run(model, ids)
    if not torch.isfinite(logits).all():
        sys.exit(f"{name}: the reference is not finite")
    greedy = continue_greedily(model, ids)
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    if packed:
        save_packed(folder, packed)
    golden = {
        "input_ids": ids[0].to(torch.int32),
        "logits": logits.float().contiguous(),
        "hidden_states": torch.stack(states).float().contiguous(),
        "greedy": greedy.to(torch.int32),
    }
    save_file(golden, folder / "golden.safetensors")
    if not peers:
        older = older_spelling(json.loads((folder / "config.json").read_text()))
        if older is not None:
            (folder / "config.legacy.json").write_text(json.dumps(older, indent=2) + "\n")
        write_noise(folder)
    size = sum(file.stat().st_size for file in folder.iterdir()) // 1024
    print(f"{name}: {size} KiB, logits std {logits.std():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--noise", nargs="+", type=Path, metavar="FOLDER")
    args = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    if args.noise:
        for folder in args.noise:
            print(f"{folder.name}: noise {write_noise(folder)['logits']:.1e}")
        return
    if args.out is None:
        parser.error("OUTDIR is missing")
    known = PEERS if args.peers else FAMILIES
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    for name in args.names or known:
        make(name, args.out, args.seed, args.peers)


if __name__ == "__main__":
    main()

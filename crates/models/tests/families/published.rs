//! What `config.json` of published checkpoints says, as its authors uploaded it: read, or refused for a stated reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use larql_models::checkpoint::spec_of_config;
use larql_models::spec::{Ffn, Mixer, ModelSpec};
use larql_models::{Checkpoint, ModelError};
use serde_json::{Map, Value, json};

use super::{edited, fixture, refusal, spec_of};

/// File, family, layers, width of the model, width of all queries, heads of keys and values of the last layer with
/// attention, vocabulary, tied, layers with a window, and experts.
type Row = (
    &'static str,
    &'static str,
    [usize; 5],
    bool,
    (usize, Option<u32>),
    u32,
);

const READ: &[Row] = &[
    (
        "llama-2-7b",
        "llama",
        [32, 4096, 4096, 32, 32000],
        false,
        (0, None),
        0,
    ),
    (
        "tinyllama-1.1b-chat",
        "llama",
        [22, 2048, 2048, 4, 32000],
        false,
        (0, None),
        0,
    ),
    (
        "llama-3-8b",
        "llama",
        [32, 4096, 4096, 8, 128_256],
        false,
        (0, None),
        0,
    ),
    (
        "llama-3.1-8b-instruct",
        "llama",
        [32, 4096, 4096, 8, 128_256],
        false,
        (0, None),
        0,
    ),
    (
        "llama-3.2-1b-unsloth",
        "llama",
        [16, 2048, 2048, 8, 128_256],
        true,
        (0, None),
        0,
    ),
    (
        "smollm2-135m-instruct",
        "llama",
        [30, 576, 576, 3, 49152],
        true,
        (0, None),
        0,
    ),
    (
        "mistral-7b-v0.1",
        "mistral",
        [32, 4096, 4096, 8, 32000],
        false,
        (32, Some(4096)),
        0,
    ),
    (
        "mistral-7b-v0.3",
        "mistral",
        [32, 4096, 4096, 8, 32768],
        false,
        (0, None),
        0,
    ),
    (
        "mixtral-8x7b",
        "mixtral",
        [32, 4096, 4096, 8, 32000],
        false,
        (0, None),
        8,
    ),
    (
        "qwen2-0.5b",
        "qwen2",
        [24, 896, 896, 2, 151_936],
        true,
        (0, None),
        0,
    ),
    (
        "qwen2.5-7b",
        "qwen2",
        [28, 3584, 3584, 4, 152_064],
        false,
        (0, None),
        0,
    ),
    (
        "qwen3-0.6b",
        "qwen3",
        [28, 1024, 2048, 8, 151_936],
        true,
        (0, None),
        0,
    ),
    (
        "qwen1.5-moe-a2.7b",
        "qwen2-moe",
        [24, 2048, 2048, 16, 151_936],
        false,
        (0, None),
        60,
    ),
    (
        "qwen3-30b-a3b",
        "qwen3-moe",
        [48, 2048, 4096, 4, 151_936],
        false,
        (0, None),
        128,
    ),
    (
        "qwen3-coder-30b-a3b",
        "qwen3-moe",
        [48, 2048, 4096, 4, 151_936],
        false,
        (0, None),
        128,
    ),
    (
        "qwen3-next-80b-a3b",
        "qwen3-next",
        [48, 2048, 4096, 2, 151_936],
        false,
        (0, None),
        512,
    ),
    (
        "gemma-2b",
        "gemma",
        [18, 2048, 2048, 1, 256_000],
        true,
        (0, None),
        0,
    ),
    (
        "gemma-2-9b",
        "gemma2",
        [42, 3584, 4096, 8, 256_000],
        true,
        (21, Some(4096)),
        0,
    ),
    (
        "gemma-3-1b",
        "gemma3",
        [26, 1152, 1024, 1, 262_144],
        true,
        (22, Some(512)),
        0,
    ),
    (
        "gemma-3-4b-it",
        "gemma3",
        [34, 2560, 2048, 4, 262_208],
        true,
        (29, Some(1024)),
        0,
    ),
    (
        "gemma-3n-e2b",
        "gemma3n",
        [30, 2048, 2048, 2, 262_400],
        true,
        (24, Some(512)),
        0,
    ),
    (
        "phi-1.5",
        "phi",
        [24, 2048, 2048, 32, 51200],
        false,
        (0, None),
        0,
    ),
    (
        "phi-2",
        "phi",
        [32, 2560, 2560, 32, 51200],
        false,
        (0, None),
        0,
    ),
    (
        "phi-3-mini-4k",
        "phi3",
        [32, 3072, 3072, 32, 32064],
        false,
        (32, Some(2047)),
        0,
    ),
    (
        "phi-4",
        "phi3",
        [40, 5120, 5120, 10, 100_352],
        false,
        (0, None),
        0,
    ),
    (
        "granite-3.1-2b",
        "granite",
        [40, 2048, 2048, 8, 49155],
        true,
        (0, None),
        0,
    ),
    (
        "starcoder2-3b",
        "starcoder2",
        [30, 3072, 3072, 2, 49152],
        true,
        (30, Some(4096)),
        0,
    ),
    (
        "gpt2",
        "gpt2",
        [12, 768, 768, 12, 50257],
        true,
        (0, None),
        0,
    ),
    (
        "gpt2-medium",
        "gpt2",
        [24, 1024, 1024, 16, 50257],
        true,
        (0, None),
        0,
    ),
    (
        "distilgpt2",
        "gpt2",
        [6, 768, 768, 12, 50257],
        true,
        (0, None),
        0,
    ),
    (
        "olmo-2-7b",
        "olmo2",
        [32, 4096, 4096, 32, 100_352],
        false,
        (0, None),
        0,
    ),
    (
        "olmoe-1b-7b",
        "olmoe",
        [16, 2048, 2048, 16, 50304],
        false,
        (0, None),
        64,
    ),
    (
        "deepseek-v2-lite",
        "deepseek-v2",
        [27, 2048, 3072, 16, 102_400],
        false,
        (0, None),
        64,
    ),
    (
        "gpt-oss-20b",
        "gpt-oss",
        [24, 2880, 4096, 8, 201_088],
        false,
        (12, Some(128)),
        32,
    ),
    (
        "command-r7b",
        "cohere2",
        [32, 4096, 4096, 8, 256_000],
        true,
        (24, Some(4096)),
        0,
    ),
    (
        "smollm3-3b",
        "smollm3",
        [36, 2048, 2048, 4, 128_256],
        true,
        (0, None),
        0,
    ),
    (
        "glm-4-9b-0414",
        "glm4",
        [40, 4096, 4096, 2, 151_552],
        false,
        (0, None),
        0,
    ),
    (
        "stablelm-2-1.6b",
        "stablelm",
        [24, 2048, 2048, 32, 100_352],
        false,
        (0, None),
        0,
    ),
    (
        "kimi-linear-48b-a3b",
        "kimi-linear",
        [27, 2304, 6144, 32, 163_840],
        false,
        (0, None),
        256,
    ),
];

/// File, and the refusal; `docs/models.md` names both.
const REFUSED: &[(&str, &str)] = &[
    (
        "deepseek-r1",
        "the weights are quantized (fp8), which is not read from safetensors",
    ),
    (
        "stablelm-2-12b",
        "key `qk_layernorm` is true, expected false or absent",
    ),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/published")
}

fn read(name: &str) -> Result<ModelSpec, ModelError> {
    let text = fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    spec_of_config(Path::new("config.json"), &text)
}

/// Width of all queries, heads of keys and values, and window of a layer, if it has softmax attention.
fn heads(mixer: &Mixer) -> Option<(u32, u32, Option<u32>)> {
    match mixer {
        Mixer::Attention(a) => Some((a.n_heads * a.d_head, a.n_kv_heads, a.window)),
        Mixer::Mla(mla) => Some((mla.n_heads * (mla.d_nope + mla.d_rope), mla.n_heads, None)),
        Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    }
}

#[test]
fn published_configurations_are_read() {
    for (name, family, [n_layers, d_model, d_queries, n_kv, d_vocab], tied, windows, experts) in
        READ
    {
        let spec = read(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(spec.family, *family, "{name}");
        let layers = spec.layers.iter();
        let (queries, kv, _) = layers.rev().find_map(|l| heads(&l.mixer)).unwrap();
        let got = [
            spec.layers.len(),
            spec.d_model as usize,
            queries as usize,
            kv as usize,
            spec.d_vocab as usize,
        ];
        assert_eq!(
            got,
            [*n_layers, *d_model, *d_queries, *n_kv, *d_vocab],
            "{name}"
        );
        assert_eq!(spec.head.tied, *tied, "{name}");
        let layers = spec.layers.iter();
        let found: Vec<u32> = layers.filter_map(|layer| heads(&layer.mixer)?.2).collect();
        assert_eq!((found.len(), found.first().copied()), *windows, "{name}");
        let layers = spec.layers.iter().rev();
        let moe = layers.map(|layer| match &layer.ffn {
            Ffn::Moe(moe) => moe.n_experts,
            Ffn::Gated(_) | Ffn::Plain(_) => 0,
        });
        assert_eq!(moe.max(), Some(*experts), "{name}");
    }
}

#[test]
fn published_configurations_are_refused_for_a_stated_reason() {
    for (name, reason) in REFUSED {
        let error = read(name).unwrap_err().to_string();
        assert_eq!(error, format!("config.json: {reason}"), "{name}");
    }
}

#[test]
fn every_published_file_has_a_row_and_the_documentation_names_it() {
    let entries = fs::read_dir(folder()).unwrap();
    let files: BTreeSet<String> = entries
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    let rows = READ
        .iter()
        .map(|row| row.0)
        .chain(REFUSED.iter().map(|row| row.0));
    assert_eq!(files, rows.map(ToOwned::to_owned).collect());
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let docs = fs::read_to_string(docs).unwrap();
    for name in files {
        assert!(docs.contains(&format!("`{name}`")), "{name}");
    }
}

/// Every attribute that transformers 4.x wrote of its base class, at the values it had there.
fn dumped() -> Map<String, Value> {
    let text = r#"{
        "add_cross_attention": false, "architectures": ["LlamaForCausalLM"], "bad_words_ids": [[5]],
        "begin_suppress_tokens": [1], "bos_token_id": 1, "chunk_size_feed_forward": 0,
        "cross_attention_hidden_size": null, "decoder_start_token_id": 2, "diversity_penalty": 0.0,
        "do_sample": true, "early_stopping": false, "encoder_no_repeat_ngram_size": 0,
        "eos_token_id": 2, "exponential_decay_length_penalty": [5, 1.1], "finetuning_task": "sst2",
        "forced_bos_token_id": 1, "forced_eos_token_id": 2, "id2label": { "0": "LABEL_0" },
        "is_decoder": true, "is_encoder_decoder": false, "label2id": { "LABEL_0": 0 },
        "length_penalty": 1.0, "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0,
        "num_beam_groups": 1, "num_beams": 4, "num_return_sequences": 1, "output_attentions": false,
        "output_hidden_states": true, "output_scores": false, "pad_token_id": 0, "prefix": "a",
        "problem_type": "regression", "pruned_heads": {}, "remove_invalid_values": false,
        "repetition_penalty": 1.1, "return_dict": true, "return_dict_in_generate": false,
        "sep_token_id": 3, "suppress_tokens": [7], "task_specific_params": { "a": { "b": 1 } },
        "temperature": 0.6, "tf_legacy_loss": false, "tie_encoder_decoder": false,
        "tokenizer_class": "LlamaTokenizer", "top_k": 50, "top_p": 0.9, "torch_dtype": "float16",
        "torchscript": false, "typical_p": 1.0, "use_bfloat16": false,
        "_name_or_path": "a/b", "_commit_hash": "f00", "max_window_layers": 28,
        "transformers.js_config": { "kv_cache_dtype": "fp16" }, "transformers_version": "4.40.0",
        "unsloth_fixed": true, "unsloth_version": "2024.9", "use_mrope": false,
        "use_sliding_window": false, "rope_interleaved": false, "is_llama_config": true
    }"#;
    serde_json::from_str(text).unwrap()
}

#[test]
fn what_old_versions_wrote_of_their_base_class_changes_nothing() {
    for name in ["llama", "olmo2", "gpt2", "deepseek-v2", "granitemoe"] {
        let spec = spec_of(name, |cfg| {
            let mut more = dumped();
            more.retain(|key, _| !cfg.contains_key(key));
            cfg.append(&mut more);
        });
        assert_eq!(&spec, fixture(name).spec(), "{name}");
    }
}

#[test]
fn the_same_keys_with_another_forward_pass_are_refused() {
    let cases = [
        ("use_mrope", json!(true), "true, expected false or absent"),
        (
            "rope_interleaved",
            json!(true),
            "true, expected false or absent",
        ),
        (
            "add_cross_attention",
            json!(true),
            "true, expected false or absent",
        ),
        (
            "is_encoder_decoder",
            json!(true),
            "true, expected false or absent",
        ),
        (
            "use_sliding_window",
            json!(true),
            "true, expected false or absent",
        ),
        (
            "is_llama_config",
            json!(false),
            "false, expected true or absent",
        ),
        (
            "pruned_heads",
            json!({ "1": [0] }),
            "{\"1\":[0]}, expected empty or absent",
        ),
    ];
    for (key, value, says) in cases {
        let message = refusal("llama", |cfg| drop(cfg.insert(key.to_owned(), value)));
        assert_eq!(message, format!("key `{key}` is {says}"));
    }
}

#[test]
fn code_of_the_files_own_counts_unless_it_is_the_known_class() {
    let with = |architecture: &str| {
        let architectures = json!([architecture]);
        move |cfg: &mut Map<String, Value>| {
            cfg.insert("architectures".to_owned(), architectures);
            cfg.insert(
                "auto_map".to_owned(),
                json!({ "AutoModel": "modeling_x.X" }),
            );
        }
    };
    assert_eq!(
        &spec_of("deepseek-v2", with("DeepseekV2ForCausalLM")),
        fixture("deepseek-v2").spec()
    );
    let message = refusal("llama", with("LlamaMoEForCausalLM"));
    assert_eq!(
        message,
        "key `auto_map` is {\"AutoModel\":\"modeling_x.X\"}, expected no key, as LlamaMoEForCausalLM is code of the files' own and not the class of llama"
    );
}

#[test]
fn an_unknown_key_comes_with_what_to_do() {
    let dir = edited("llama", |cfg| {
        cfg.insert("attention_sauce".to_owned(), json!(1));
    });
    let error = Checkpoint::open(dir.path()).unwrap_err();
    let hint = error.hint().unwrap();
    let file = dir.path().join("config.json").display().to_string();
    assert!(hint.contains(&format!("remove it from {file}")), "{hint}");
    assert!(hint.contains("your statement"), "{hint}");
}

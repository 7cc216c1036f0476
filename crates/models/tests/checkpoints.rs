//! Configurations and tensor accounting: both spellings agree, and nothing is guessed or dropped.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use larql_formats::gguf::Value as GgufValue;
use larql_formats::safetensors::{SafetensorsFile, Writer};
use larql_formats::{Dtype, TensorInfo};
use larql_models::spec::{Mixer, ModelSpec, RopeScaling};
use larql_models::to_gguf::{GgufContent, GgufPlan};
use larql_models::{Checkpoint, TensorRole};
use larql_testkit::{FAMILIES, atlas, parity_fixture};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// What a case does to a configuration.
type Edit = fn(&mut Map<String, Value>);

/// A copy of a fixture with an edited `config.json`.
fn with_config(name: &str, edit: impl FnOnce(&mut Map<String, Value>)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let from = parity_fixture(name);
    fs::copy(
        from.join("model.safetensors"),
        dir.path().join("model.safetensors"),
    )
    .unwrap();
    let mut config: Map<String, Value> =
        serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    edit(&mut config);
    fs::write(
        dir.path().join("config.json"),
        serde_json::to_vec(&config).unwrap(),
    )
    .unwrap();
    dir
}

fn refusal(dir: &Path) -> String {
    let message = Checkpoint::open(dir).unwrap_err().to_string();
    message.replace(&dir.display().to_string(), "DIR")
}

fn edited(name: &str, edit: impl FnOnce(&mut Map<String, Value>)) -> String {
    refusal(with_config(name, edit).path())
}

/// A copy of a fixture with edited tensors.
fn with_tensors(
    name: &str,
    edit: impl FnOnce(&mut Vec<(String, Dtype, Vec<u64>, Vec<u8>)>),
) -> TempDir {
    let dir = with_config(name, |_| {});
    let path = dir.path().join("model.safetensors");
    let file = SafetensorsFile::open(&path).unwrap();
    let mut tensors: Vec<_> = file
        .tensors()
        .iter()
        .map(|info| {
            (
                info.name.clone(),
                info.dtype,
                info.shape.clone(),
                file.data(&info.name).unwrap().to_vec(),
            )
        })
        .collect();
    drop(file);
    edit(&mut tensors);
    let mut writer = Writer::new(&[("format".to_owned(), "pt".to_owned())].into()).unwrap();
    for (name, dtype, shape, _) in &tensors {
        writer
            .declare(TensorInfo::new(name.clone(), *dtype, shape.clone()).unwrap())
            .unwrap();
    }
    fs::remove_file(&path).unwrap();
    let mut stream = writer.begin(fs::File::create(&path).unwrap()).unwrap();
    while let Some(name) = stream.next_tensor().map(|info| info.name.clone()) {
        let (.., bytes) = tensors.iter().find(|tensor| tensor.0 == name).unwrap();
        stream.write_tensor_bytes(&name, bytes).unwrap();
    }
    stream.finish().unwrap();
    dir
}

#[test]
fn both_spellings_of_a_configuration_give_the_same_spec() {
    for name in FAMILIES {
        let modern = Checkpoint::open(&parity_fixture(name)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let from = parity_fixture(name);
        if !from.join("config.legacy.json").is_file() {
            // Configurations that were never spelled otherwise.
            assert!(
                ["gpt2", "kimi-linear", "gemma3n"].contains(&name) || name.starts_with("gemma4")
            );
            continue;
        }
        fs::copy(
            from.join("model.safetensors"),
            dir.path().join("model.safetensors"),
        )
        .unwrap();
        fs::copy(
            from.join("config.legacy.json"),
            dir.path().join("config.json"),
        )
        .unwrap();
        assert_eq!(
            Checkpoint::open(dir.path()).unwrap().spec(),
            modern.spec(),
            "{name}"
        );
    }
}

#[test]
fn a_spec_survives_json() {
    for name in FAMILIES {
        let spec = Checkpoint::open(&parity_fixture(name))
            .unwrap()
            .spec()
            .clone();
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(
            serde_json::from_str::<ModelSpec>(&text).unwrap(),
            spec,
            "{name}"
        );
    }
}

#[test]
fn facts_that_differ_per_layer_are_expanded() {
    let spec = Checkpoint::open(&parity_fixture("gemma3"))
        .unwrap()
        .spec()
        .clone();
    let facts: Vec<(Option<u32>, f64)> = spec
        .layers
        .iter()
        .map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => {
                (attention.window, attention.rope.as_ref().unwrap().theta)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        facts,
        [(Some(9), 1e4), (Some(9), 1e4), (None, 1e6), (Some(9), 1e4)]
    );
}

#[test]
fn yarn_states_its_attention_factor() {
    let scaling = |edit: fn(&mut Map<String, Value>)| {
        let spec = Checkpoint::open(with_config("llama-yarn", edit).path())
            .unwrap()
            .spec()
            .clone();
        match &spec.layers[0].mixer {
            Mixer::Attention(attention) => match attention.rope.as_ref().unwrap().scaling {
                RopeScaling::Yarn {
                    attention_factor, ..
                } => attention_factor,
                ref other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    assert!((scaling(|_| {}) - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    assert_eq!(
        scaling(|cfg| cfg["rope_parameters"]["attention_factor"] = json!(1.0)),
        1.0
    );
    let both = scaling(|cfg| {
        cfg["rope_parameters"]["mscale"] = json!(0.7);
        cfg["rope_parameters"]["mscale_all_dim"] = json!(0.7);
    });
    assert_eq!(both, 1.0);
}

#[test]
fn a_switched_off_window_is_inert() {
    let plain = Checkpoint::open(&parity_fixture("qwen2"))
        .unwrap()
        .spec()
        .clone();
    let silent = with_config("qwen2", |cfg| {
        cfg.insert("sliding_window".to_owned(), json!(32768));
        cfg.insert("clip_qkv".to_owned(), Value::Null);
    });
    assert_eq!(Checkpoint::open(silent.path()).unwrap().spec(), &plain);
    let switched = with_config("qwen2", |cfg| {
        cfg.remove("layer_types");
        cfg.insert("use_sliding_window".to_owned(), json!(true));
        cfg.insert("sliding_window".to_owned(), json!(5));
        cfg.insert("max_window_layers".to_owned(), json!(2));
    });
    let spec = Checkpoint::open(switched.path()).unwrap().spec().clone();
    let windows: Vec<Option<u32>> = spec
        .layers
        .iter()
        .map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => attention.window,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(windows, [None, None, Some(5), Some(5)]);
}

#[test]
fn keys_are_refused_by_name() {
    let cases: [(&str, Edit, &str); 11] = [
        (
            "llama",
            |cfg| drop(cfg.remove("model_type")),
            "DIR/config.json: missing key `model_type`",
        ),
        (
            "llama",
            |cfg| drop(cfg.remove("hidden_size")),
            "DIR/config.json: missing key `hidden_size`",
        ),
        (
            "llama",
            |cfg| drop(cfg.insert("swiglu_limit".to_owned(), json!(7.0))),
            "DIR/config.json: key not understood: swiglu_limit",
        ),
        (
            "llama",
            |cfg| cfg["rope_parameters"]["rope_type"] = json!("longrope"),
            "DIR/config.json: key `rope_parameters.rope_type` is \"longrope\", expected one of default, linear, \
             llama3, yarn",
        ),
        (
            "llama-yarn",
            |cfg| cfg["rope_parameters"]["beta_medium"] = json!(3),
            "DIR/config.json: key not understood: rope_parameters.beta_medium",
        ),
        (
            "llama",
            |cfg| cfg["hidden_act"] = json!("mish"),
            "DIR/config.json: key `hidden_act` is \"mish\", expected one of silu, swish, gelu, gelu_new, gelu_fast, \
             gelu_pytorch_tanh, relu, relu2",
        ),
        (
            "llama",
            |cfg| cfg["num_hidden_layers"] = json!(4_294_967_300u64),
            "DIR/config.json: key `num_hidden_layers` is 4294967300, expected 1 to 4096",
        ),
        (
            "llama",
            |cfg| cfg["num_key_value_heads"] = json!(3),
            "DIR/config.json: key `num_key_value_heads` is 3, expected a divisor of 4",
        ),
        (
            "gemma2",
            |cfg| cfg["attn_logit_softcapping"] = json!(0.0),
            "DIR/config.json: key `attn_logit_softcapping` is 0.0, expected a number above 0",
        ),
        (
            "gemma3",
            |cfg| cfg["use_bidirectional_attention"] = json!(true),
            "DIR/config.json: key `use_bidirectional_attention` is true, expected false or absent",
        ),
        (
            "gemma3",
            |cfg| cfg["layer_types"][1] = json!("linear_attention"),
            "DIR/config.json: key `layer_types` is \"linear_attention\", expected full_attention or sliding_attention",
        ),
    ];
    for (name, edit, expected) in cases {
        assert_eq!(edited(name, edit), expected, "{name}");
    }
    let message = edited("llama", |cfg| cfg["model_type"] = json!("bitnet"));
    let known = message.strip_prefix("DIR/config.json: unknown model type `bitnet`; known: ");
    let known: Vec<&str> = known.unwrap().split(", ").collect();
    for model_type in ["gemma3_text", "gpt_oss", "llama", "qwen3_moe"] {
        assert!(known.contains(&model_type), "{message}");
    }
}

#[test]
fn a_window_of_nothing_is_refused() {
    let expected = "DIR/config.json: key `sliding_window` is 0, expected a number above 0 or null";
    for name in ["mistral-sliding", "gemma2", "gemma3"] {
        assert_eq!(
            edited(name, |cfg| cfg["sliding_window"] = json!(0)),
            expected,
            "{name}"
        );
    }
}

/// A GGUF made from a fixture, with one metadata key set.
fn gguf_with(name: &str, key: &str, value: GgufValue) -> String {
    let checkpoint = Checkpoint::open(&parity_fixture(name)).unwrap();
    let mut plan = GgufPlan::new(&checkpoint, GgufContent::Whole).unwrap();
    plan.metadata_mut().set(key, value);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    plan.write(&checkpoint, fs::File::create(&path).unwrap())
        .unwrap();
    match Checkpoint::open(&path) {
        Ok(_) => "opened".to_owned(),
        Err(error) => error
            .to_string()
            .replace(&path.display().to_string(), "FILE"),
    }
}

#[test]
fn gguf_keys_are_refused_by_name() {
    let cases = [
        ("gemma3.vocab_size", GgufValue::U32(300), "opened"),
        (
            "gemma3.vocab_size",
            GgufValue::U32(299),
            "FILE: key `gemma3.vocab_size` is 299, expected 300, the rows of token_embd.weight",
        ),
        (
            "gemma3.rope.scaling.attn_factor",
            GgufValue::F32(3.0),
            "FILE: key `gemma3.rope.scaling.attn_factor` is 3, expected 1 or no key where the scaling is neither yarn nor longrope",
        ),
        (
            "gemma3.block_count",
            GgufValue::U32(1 << 31),
            "FILE: key `gemma3.block_count` is 2147483648, expected 1 to 4096",
        ),
        (
            "gemma3.context_length",
            GgufValue::U32(0),
            "FILE: key `gemma3.context_length` is 0, expected a number above 0",
        ),
        (
            "gemma3.attention.sliding_window",
            GgufValue::U32(0),
            "FILE: key `gemma3.attention.sliding_window` is 0, expected a number above 0",
        ),
        (
            "gemma3.swiglu_limit",
            GgufValue::F32(7.0),
            "FILE: key not understood: gemma3.swiglu_limit",
        ),
    ];
    for (key, value, expected) in cases {
        assert_eq!(gguf_with("gemma3", key, value), expected, "{key}");
    }
    let bitnet = GgufValue::String("bitnet".to_owned());
    let message = gguf_with("gemma3", "general.architecture", bitnet);
    let known = message.strip_prefix("FILE: unknown model type `bitnet`; known: ");
    let known: Vec<&str> = known.unwrap().split(", ").collect();
    for arch in ["gemma3", "gpt-oss", "llama", "qwen3moe"] {
        assert!(known.contains(&arch), "{message}");
    }
}

#[test]
fn other_weight_files_are_named() {
    let dir = with_config("llama", |_| {});
    fs::copy(
        dir.path().join("model.safetensors"),
        dir.path().join("consolidated.safetensors"),
    )
    .unwrap();
    let notes = Checkpoint::open(dir.path()).unwrap().notes().to_vec();
    assert_eq!(
        notes,
        ["consolidated.safetensors is not part of the checkpoint: not read"]
    );
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap()
            .success()
    );
    let message = Checkpoint::open(&path).unwrap_err().to_string();
    assert_eq!(message, format!("{}: not a regular file", path.display()));
}

#[test]
fn tensors_are_accounted_for() {
    let dir = with_tensors("qwen2", |tensors| {
        tensors.retain(|tensor| !tensor.0.ends_with("layers.1.self_attn.k_proj.bias"));
        tensors.retain(|tensor| !tensor.0.ends_with("layers.3.mlp.up_proj.weight"));
        tensors.push((
            "model.layers.0.extra.weight".to_owned(),
            Dtype::F32,
            vec![1],
            vec![0; 4],
        ));
        tensors.push((
            "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(),
            Dtype::F32,
            vec![1],
            vec![0; 4],
        ));
    });
    assert_eq!(
        refusal(dir.path()),
        "DIR: 2 tensors missing: model.layers.1.self_attn.k_proj.bias, model.layers.3.mlp.up_proj.weight; 1 tensors \
         not accounted for: model.layers.0.extra.weight"
    );
    let dir = with_config("llama", |cfg| cfg["intermediate_size"] = json!(88));
    assert_eq!(
        refusal(dir.path()),
        "DIR: tensor `model.layers.0.mlp.gate_proj.weight` has shape [104, 56], the configuration needs [88, 56]"
    );
    let dir = with_tensors("llama", |tensors| {
        let norm = tensors
            .iter_mut()
            .find(|tensor| tensor.0 == "model.norm.weight")
            .unwrap();
        (norm.1, norm.3) = (Dtype::I16, norm.3.clone());
    });
    assert_eq!(
        refusal(dir.path()),
        "DIR: tensor `model.norm.weight` is stored as I16, which cannot be used as weights here"
    );
}

#[test]
fn a_tied_flag_and_a_stored_head() {
    let stored = |head: fn(Vec<u8>) -> Vec<u8>| {
        with_tensors("llama-rope3", move |tensors| {
            let embedding = tensors
                .iter()
                .find(|tensor| tensor.0 == "model.embed_tokens.weight")
                .unwrap()
                .clone();
            tensors.push((
                "lm_head.weight".to_owned(),
                embedding.1,
                embedding.2,
                head(embedding.3),
            ));
        })
    };
    let same = Checkpoint::open(stored(|bytes| bytes).path()).unwrap();
    assert!(same.spec().head.tied);
    assert_eq!(same.ignored()[0].name, "lm_head.weight");
    let differs = Checkpoint::open(
        stored(|mut bytes| {
            bytes[100] ^= 1;
            bytes
        })
        .path(),
    )
    .unwrap();
    assert!(!differs.spec().head.tied);
    assert!(differs.notes()[0].contains("lm_head.weight differs"));
    assert!(differs.tensor(TensorRole::Head).is_ok());
    assert_eq!(
        edited("llama-rope3", |cfg| cfg["tie_word_embeddings"] =
            json!(false)),
        "DIR: 1 tensors missing: lm_head.weight"
    );
}

#[test]
fn folders_that_are_no_model_or_two() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        refusal(dir.path()),
        "DIR: not a model: expected a .gguf file or a folder with config.json and safetensors"
    );
    fs::copy(
        parity_fixture("llama").join("config.json"),
        dir.path().join("config.json"),
    )
    .unwrap();
    assert_eq!(refusal(dir.path()), "DIR: missing model.safetensors");
    fs::copy(
        parity_fixture("llama").join("model.safetensors"),
        dir.path().join("model.safetensors"),
    )
    .unwrap();
    fs::write(dir.path().join("other.gguf"), b"GGUF").unwrap();
    assert_eq!(
        refusal(dir.path()),
        "DIR: the folder holds both safetensors and other.gguf; name the one you mean"
    );
    fs::remove_file(dir.path().join("other.gguf")).unwrap();
    fs::remove_file(dir.path().join("config.json")).unwrap();
    assert_eq!(refusal(dir.path()), "DIR: missing config.json");
    fs::write(dir.path().join("config.json"), b"{\"model_type\": ").unwrap();
    assert_eq!(refusal(dir.path()), "DIR/config.json: not valid JSON");
}

#[test]
fn a_wrapper_nests_its_decoder() {
    let dir = with_tensors("gemma3", |tensors| {
        for tensor in tensors.iter_mut() {
            tensor.0 = format!("language_model.{}", tensor.0);
        }
        tensors.push((
            "vision_tower.patch.weight".to_owned(),
            Dtype::F32,
            vec![1],
            vec![0; 4],
        ));
    });
    let config = dir.path().join("config.json");
    let text: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    let outer = json!({"model_type": "gemma3", "text_config": text, "vision_config": {}, "mm_tokens_per_image": 256});
    fs::write(&config, outer.to_string()).unwrap();
    let wrapped = Checkpoint::open(dir.path()).unwrap();
    let plain = Checkpoint::open(&parity_fixture("gemma3")).unwrap();
    assert_eq!(wrapped.spec(), plain.spec());
    assert_eq!(
        wrapped.ignored()[0].reason,
        "vision tower: only text runs here"
    );
}

#[test]
fn atlas_opens_with_its_tokenizer() {
    let checkpoint = Checkpoint::open(atlas()).unwrap();
    assert_eq!(
        (checkpoint.spec().n_layers(), checkpoint.spec().d_vocab),
        (4, 2583)
    );
    assert_eq!(checkpoint.tokenizer().unwrap().special().bos, Some(2));
}

/// Packed weights must not be taken for numbers, whoever packed them.
#[test]
fn quantized_folders_are_refused_by_the_name_of_their_method() {
    let with = |key: &str, value: Value| {
        let key = key.to_owned();
        edited("llama", move |config| {
            config.insert(key, value);
        })
    };
    let refused = |method: &str| {
        format!(
            "DIR/config.json: the weights are quantized ({method}), which is not read from safetensors"
        )
    };
    for method in ["fp8", "gptq", "awq", "bitsandbytes", "compressed-tensors"] {
        let config = json!({ "quant_method": method, "bits": 4 });
        assert_eq!(with("quantization_config", config), refused(method));
    }
    let mlx = json!({ "group_size": 64, "bits": 4 });
    assert_eq!(with("quantization", mlx), refused("mlx, 4 bits"));
    let nested = json!({ "quant_method": "mxfp4" });
    let wrapped = edited("gemma3", |config| {
        let inner = Value::Object(std::mem::take(config));
        config.insert("model_type".to_owned(), "gemma3".into());
        config.insert("text_config".to_owned(), inner);
        config.insert("quantization_config".to_owned(), nested);
    });
    assert_eq!(wrapped, refused("mxfp4"));
}

/// A folder whose configuration lost the key is refused by what its tensors show.
#[test]
fn packed_tensors_are_refused_by_the_form_that_they_show() {
    const STEM: &str = "model.layers.0.mlp.up_proj";
    // The up matrix of the fixture is replaced by these, and anything else stays.
    let packed = |parts: &[(&str, Dtype, [u64; 2])]| {
        let dir = with_tensors("llama", |tensors| {
            tensors.retain(|(name, ..)| *name != format!("{STEM}.weight"));
            for (suffix, dtype, shape) in parts {
                let info = TensorInfo::new("packed", *dtype, shape.to_vec()).unwrap();
                let bytes = vec![0; info.n_bytes as usize];
                tensors.push((format!("{STEM}{suffix}"), *dtype, shape.to_vec(), bytes));
            }
        });
        refusal(dir.path())
    };
    let refused = |form: &str, suffix: &str| {
        format!(
            "DIR: the weights are quantized ({form}, as tensor `{STEM}{suffix}` shows), which is not read from safetensors"
        )
    };
    use Dtype::{Bf16, F8E4M3, F16, F32, I32, U32};
    let fp8 = packed(&[
        (".weight", F8E4M3, [96, 64]),
        (".weight_scale_inv", F32, [1, 1]),
    ]);
    assert_eq!(fp8, refused("fp8", ".weight"));
    let fp8 = packed(&[
        (".weight", F8E4M3, [96, 64]),
        (".weight_scale", F32, [1, 1]),
    ]);
    assert_eq!(fp8, refused("fp8", ".weight"));
    let mlx = packed(&[
        (".weight", U32, [96, 8]),
        (".scales", Bf16, [96, 1]),
        (".biases", Bf16, [96, 1]),
    ]);
    assert_eq!(mlx, refused("mlx", ".weight"));
    let gptq = [
        (".qweight", I32, [8, 96]),
        (".qzeros", I32, [1, 12]),
        (".scales", F16, [1, 96]),
        (".g_idx", I32, [1, 64]),
    ];
    assert_eq!(packed(&gptq), refused("gptq", ".qweight"));
    assert_eq!(packed(&gptq[..3]), refused("gptq", ".qweight"));
    let awq = packed(&[
        (".qweight", I32, [64, 12]),
        (".qzeros", I32, [1, 12]),
        (".scales", F16, [1, 96]),
    ]);
    assert_eq!(awq, refused("awq", ".qweight"));
    let other = packed(&[(".qweight", I32, [64, 12])]);
    assert_eq!(
        other,
        format!(
            "DIR: 1 tensors missing: {STEM}.weight; 1 tensors not accounted for: {STEM}.qweight"
        )
    );
}

/// One number of a file must not decide how much memory is asked for.
#[test]
fn sizes_that_no_model_has_are_refused_before_anything_is_laid_out() {
    let layers = edited("gemma3", |config| {
        config.insert("num_hidden_layers".to_owned(), 3_000_000_000_u32.into());
    });
    assert_eq!(
        layers,
        "DIR/config.json: key `num_hidden_layers` is 3000000000, expected 1 to 4096"
    );
    let heads = edited("qwen3-next", |config| {
        config.insert("num_attention_heads".to_owned(), 100_000_000.into());
    });
    assert_eq!(heads, "DIR: no such model");
}

/// transformers fails, or takes `null` for false where the class says true.
#[test]
fn a_null_flag_is_refused() {
    let message = edited("deepseek-v3", |config| {
        config.insert("norm_topk_prob".to_owned(), Value::Null);
    });
    assert_eq!(
        message,
        "DIR/config.json: key `norm_topk_prob` is null, expected a value, or no key"
    );
}

#[test]
fn an_mxfp4_exponent_that_is_no_number_is_refused_by_row() {
    const SCALES: &str = "model.layers.0.mlp.experts.gate_up_proj_scales";
    let dir = with_tensors("gpt-oss-mxfp4", |tensors| {
        let scales = tensors.iter_mut().find(|tensor| tensor.0 == SCALES);
        // Two blocks in a row of 64: this is row 3, the second up row of the first expert.
        scales.unwrap().3[7] = 255;
    });
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let up = TensorRole::Expert(0, 0, larql_models::roles::ExpertTensor::Up);
    let error = checkpoint.tensor(up).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("tensor `{SCALES}`, row 3, column 1: NaN is not finite")
    );
}

/// llama.cpp takes a factor without a type for a linear one.
#[test]
fn a_rope_factor_without_a_type_is_linear() {
    let checkpoint = Checkpoint::open(&parity_fixture("llama")).unwrap();
    let mut plan = GgufPlan::new(&checkpoint, GgufContent::Whole).unwrap();
    plan.metadata_mut()
        .set("llama.rope.scaling.factor", GgufValue::F32(4.0));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    plan.write(&checkpoint, fs::File::create(&path).unwrap())
        .unwrap();
    let read = Checkpoint::open(&path).unwrap();
    let Mixer::Attention(attention) = &read.spec().layers[0].mixer else {
        unreachable!()
    };
    let scaling = &attention.rope.as_ref().unwrap().scaling;
    assert_eq!(*scaling, RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn a_folder_without_tokenizer_json_says_how_to_make_it() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(parity_fixture("llama").join(file), dir.path().join(file)).unwrap();
    }
    fs::write(dir.path().join("tokenizer.model"), "x").unwrap();
    let error = Checkpoint::open(dir.path())
        .unwrap()
        .tokenizer()
        .unwrap_err();
    let hint = error.hint().unwrap();
    let call = format!(".save_pretrained({:?})", dir.path());
    assert!(
        hint.contains("AutoTokenizer") && hint.contains(&call),
        "{hint}"
    );
}

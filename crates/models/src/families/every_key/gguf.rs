//! The keys of GGUF metadata.

use std::collections::HashMap;
use std::fs::File;

use larql_formats::gguf::{Array, GgufFile, Metadata, Value};
use larql_testkit::{FAMILIES, parity_fixture};
use tempfile::TempDir;

use super::{Harmless, Silent};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::families::{self, GgufFacts};
use crate::spec::ModelSpec;
use crate::to_gguf::{GgufContent, GgufPlan, RopeTable, rope_tables};

/// Keys without effect, and why nobody is misled.
const HARMLESS: &[Harmless] = &[
    (
        "*",
        &["rope.scaling.finetuned"],
        "how the model was trained; llama.cpp prints it, and the one architecture that it switches something in refuses it",
    ),
    (
        "*",
        &["rope.scaling.original_context_length"],
        "where a scaling begins, where there is none; Phi 3's converter states it always",
    ),
    (
        "qwen",
        &["feed_forward_length"],
        "the width of dense layers, in files that have none: experts have a key of their own",
    ),
    (
        "qwen3-next",
        &["full_attention_interval"],
        "the usual 4 beside a list of the layers, which the converter writes unasked and llama.cpp passes over",
    ),
    (
        "kimi-linear",
        &["attention.value_length"],
        "the converter writes a width that nothing has; llama.cpp takes that of the latents",
    ),
    (
        "kimi-linear",
        &["rope.freq_base"],
        "the base of a rotation that no layer makes, copied from config.json",
    ),
    (
        "gpt2",
        &["rope.freq_base", "rope.dimension_count"],
        "a rotation that no layer makes: positions are learned",
    ),
    (
        "stablelm",
        &["use_parallel_residual"],
        "the converter says true where config.json is silent; llama.cpp looks at the tensors, as we do",
    ),
];

/// Whole numbers that no tensor tells apart: another one is another model of the same tensors.
const FREE: &[Harmless] = &[
    ("*", &["context_length"], "how far the model was trained"),
    (
        "*",
        &[
            "attention.sliding_window",
            "attention.sliding_window_pattern",
        ],
        "a mask",
    ),
    (
        "*",
        &[
            "rope.dimension_count",
            "rope.scaling.original_context_length",
        ],
        "a rotation",
    ),
    (
        "*",
        &["expert_used_count", "expert_group_used_count"],
        "a choice among the experts that are there",
    ),
    (
        "gemma3n",
        &["altup.active_idx"],
        "a choice among the streams",
    ),
    (
        "gemma",
        &["attention.shared_kv_layers"],
        "files may hold the projections of layers that share, which nobody reads",
    ),
];

/// Keys that some architecture has, as llama.cpp lists them (`llama-arch.cpp`) and its converter writes them.
const KEYS: &str = "\
    activation.situ_beta activation.situ_linear_beta activation_sparsity_scale altup.active_idx altup.num_inputs \
    attention.causal attention.clamp_kqv attention.compress_ratios attention.compress_rope_freq_base \
    attention.decay_lora_rank attention.gate_lora_rank attention.group_norm_epsilon attention.group_norm_groups \
    attention.head_count attention.head_count_kv attention.iclr_lora_rank attention.indexer.block_size \
    attention.indexer.head_count attention.indexer.key_length attention.indexer.kpool \
    attention.indexer.kpool_select_tail attention.indexer.local_blocks attention.indexer.top_k \
    attention.indexer.types attention.key_length attention.key_length_mla attention.key_length_mla_swa \
    attention.key_length_swa attention.kv_lora_rank attention.kv_lora_rank_swa attention.layer_norm_epsilon \
    attention.layer_norm_rms_epsilon attention.max_alibi_bias attention.output_group_count \
    attention.output_lora_rank attention.output_scale attention.q_lora_rank attention.recurrent_layers \
    attention.relative_buckets_count attention.rope_pattern attention.scale attention.shared_kv_layers \
    attention.sliding_window attention.sliding_window_pattern attention.temperature_length \
    attention.temperature_scale attention.value_length attention.value_length_mla attention.value_length_mla_swa \
    attention.value_length_swa attention.value_residual_mix_lora_rank attention.value_scale attn_logit_softcapping \
    attn_res.block_size block_count context_length embedding_length embedding_length_out \
    embedding_length_per_layer_input embedding_scale expert_chunk_feed_forward_length expert_count \
    expert_feed_forward_length expert_gating_func expert_group_count expert_group_scale expert_group_used_count \
    expert_latent_length expert_shared_count expert_shared_feed_forward_length expert_used_count \
    expert_weights_norm expert_weights_scale experts_per_group feed_forward_length final_logit_softcapping \
    full_attention_interval hidden_activation interleave_moe_layer_step kda.gate_lower_bound kda.head_dim \
    kda.safe_gate leading_dense_block_count logit_scale moe_every_n_layers moe_latent_size nextn_predict_layers \
    residual_scale rope.dimension_count rope.dimension_count_swa rope.dimension_sections rope.freq_base \
    rope.freq_base_swa rope.scale_linear rope.scaling.alpha rope.scaling.attn_factor rope.scaling.factor \
    rope.scaling.finetuned rope.scaling.original_context_length rope.scaling.type rope.scaling.yarn_attn_factor \
    rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scaling.yarn_ext_factor \
    rope.scaling.yarn_log_multiplier router_logit_softcapping shortconv.l_cache ssm.conv_kernel ssm.dt_b_c_rms \
    ssm.group_count ssm.inner_size ssm.state_size ssm.time_step_rank swiglu_clamp_exp swiglu_clamp_shexp \
    tensor_data_layout use_parallel_residual vocab_size";

/// A fixture as the file that the exporter writes.
struct Exported {
    name: &'static str,
    arch: String,
    metadata: Metadata,
    shapes: HashMap<String, Vec<u64>>,
    tables: Vec<RopeTable>,
    spec: ModelSpec,
    dir: TempDir,
}

/// What a reader makes of a changed file.
#[derive(Debug, PartialEq)]
enum Read {
    /// The key is one that it does not know.
    Unknown,
    /// The value is none that it takes.
    Refused,
    /// The tensors are those of the model that it describes now.
    Another,
    /// It is read as if nothing had changed.
    Same,
}

impl Exported {
    fn new(name: &'static str) -> Self {
        let checkpoint = Checkpoint::open(&parity_fixture(name)).unwrap();
        let plan = GgufPlan::new(&checkpoint, GgufContent::Whole).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("model.gguf")).unwrap();
        plan.write(&checkpoint, file).unwrap();
        let shapes = plan
            .tensors()
            .map(|info| (info.name.clone(), info.shape.clone()));
        let arch = plan.metadata().str("general.architecture").unwrap();
        let mut exported = Self {
            name,
            arch: arch.unwrap().to_owned(),
            metadata: plan.metadata().clone(),
            shapes: shapes.collect(),
            tables: rope_tables(checkpoint.spec()),
            spec: checkpoint.spec().clone(),
            dir,
        };
        // Facts of the fixture that GGUF has no word for do not matter here.
        exported.spec = exported.spec_of(&exported.metadata).unwrap();
        exported
    }

    fn spec_of(&self, metadata: &Metadata) -> Result<ModelSpec, ModelError> {
        families::by_gguf_arch("file", &self.arch)?.read_gguf(&GgufFacts {
            origin: "file",
            metadata,
            d_vocab: self.spec.d_vocab,
            shape: &|name| self.shapes.get(name).cloned(),
            floats: &|name| {
                let table = self.tables.iter().find(|(table, _)| *table == name);
                Ok(table.map(|(_, values)| values.clone()))
            },
        })
    }

    /// Keys below the architecture.
    fn keys(&self) -> Vec<(String, Value)> {
        let prefix = format!("{}.", self.arch);
        let metadata = self.metadata.iter();
        metadata
            .filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?.to_owned(), value.clone())))
            .collect()
    }

    fn read(&self, key: &str, value: &Value) -> Read {
        let mut metadata = self.metadata.clone();
        metadata.set(format!("{}.{key}", self.arch), value.clone());
        match self.spec_of(&metadata) {
            Err(ModelError::UnknownKeys { .. }) => Read::Unknown,
            Err(_) => Read::Refused,
            Ok(spec) if spec == self.spec => Read::Same,
            Ok(spec) => {
                let path = self.dir.path().join("model.gguf");
                let file = GgufFile::open(&path).unwrap();
                match Checkpoint::from_gguf_with_spec(file, &path, spec, GgufContent::Whole) {
                    Err(_) => Read::Refused,
                    Ok(_) => Read::Another,
                }
            }
        }
    }
}

/// Other values of the same type.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::U32(x) => {
            let others = [x + 1, x * 2, 0].into_iter().filter(|y| y != x);
            others.map(Value::U32).collect()
        }
        Value::F32(x) => vec![Value::F32(x * 2.0), Value::F32(x + 1.0)],
        Value::Bool(x) => vec![Value::Bool(!x)],
        Value::String(_) => vec![],
        Value::Array(array) => elements(array).into_iter().map(Value::Array).collect(),
        other => panic!("{other:?}"),
    }
}

/// Values of the same type that no model has.
fn nonsense(value: &Value) -> Vec<Value> {
    match value {
        Value::U32(_) | Value::Bool(_) => vec![],
        Value::F32(x) => [-x, f32::NAN, f32::INFINITY].map(Value::F32).to_vec(),
        Value::String(_) => vec![Value::String("marmalade".to_owned())],
        Value::Array(array) => {
            let mut short = array.clone();
            match &mut short {
                Array::U32(list) => list.truncate(1),
                Array::F32(list) => list.truncate(1),
                Array::Bool(list) => list.truncate(1),
                other => panic!("{other:?}"),
            }
            vec![Value::Array(short)]
        }
        other => panic!("{other:?}"),
    }
}

/// The same array, with one element changed.
fn elements(array: &Array) -> Vec<Array> {
    let change = |i: usize| {
        let mut array = array.clone();
        match &mut array {
            Array::U32(list) => list[i] += 1,
            Array::F32(list) if list[i].is_finite() => list[i] += 1.0,
            Array::F32(list) => list[i] = 0.5,
            Array::Bool(list) => list[i] = !list[i],
            other => panic!("{other:?}"),
        }
        array
    };
    (0..array.len()).map(change).collect()
}

#[test]
fn another_value_is_refused_or_another_model() {
    let (mut silent, mut free) = (Silent::new(HARMLESS), Silent::new(FREE));
    for name in FAMILIES {
        let file = Exported::new(name);
        for (key, value) in file.keys() {
            for value in others(&value) {
                match (file.read(&key, &value), &value) {
                    (Read::Same, _) => silent.note(name, &key, &format!("{value:?}")),
                    (Read::Another, Value::U32(_) | Value::Array(Array::U32(_))) => {
                        free.note(name, &key, &format!("{value:?}"));
                    }
                    (Read::Another, _) | (Read::Refused, _) => {}
                    (Read::Unknown, _) => panic!("{name}: {key}"),
                }
            }
            for value in nonsense(&value) {
                if matches!(file.read(&key, &value), Read::Same | Read::Another) {
                    silent.note(name, &key, &format!("{value:?}"));
                }
            }
        }
        for key in KEYS.split(' ') {
            if file.metadata.get(&format!("{}.{key}", file.arch)).is_none() {
                added(&file, key, &mut silent);
            }
        }
    }
    silent.assert_listed();
    free.assert_listed();
}

/// A key that the exporter leaves out. Its type is not known here: a reader that asks for it refuses all but one.
fn added(file: &Exported, key: &str, silent: &mut Silent) {
    let values = [
        Value::U32(7777),
        Value::F32(37.5),
        Value::String("marmalade".to_owned()),
        Value::Array(Array::Bool(vec![true])),
    ];
    for value in values {
        match file.read(key, &value) {
            Read::Unknown => return,
            Read::Same => return silent.note(file.name, key, &format!("{value:?}")),
            Read::Refused | Read::Another => {}
        }
    }
    let flags = [true, false].map(|flag| file.read(key, &Value::Bool(flag)));
    if flags == [Read::Same, Read::Same] {
        silent.note(file.name, key, "true or false");
    }
}

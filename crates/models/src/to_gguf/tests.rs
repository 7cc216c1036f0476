//! Fixtures of every family go to GGUF and come back.

use std::path::{Path, PathBuf};

use larql_formats::gguf::{GgufFile, Value};
use larql_formats::{Bytes, Dtype};

use super::{GgufContent, GgufPlan};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::roles::{LayerTensor, StoredValue, TensorRole};
use crate::spec::{AttentionSpec, Mixer, ModelSpec, RopeScaling};
use crate::stored::StoredRows;

const FIXTURES: [&str; 9] = [
    "llama",
    "llama-rope3",
    "llama-yarn",
    "mistral-sliding",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
];

fn fixture_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testkit/data/parity")
        .join(name)
}

fn fixture(name: &str) -> Checkpoint {
    Checkpoint::open(&fixture_dir(name)).unwrap()
}

fn path() -> PathBuf {
    PathBuf::from("weights.gguf")
}

fn written(checkpoint: &Checkpoint, content: GgufContent) -> GgufFile {
    let plan = GgufPlan::new(checkpoint, content).unwrap();
    let bytes = plan.write(checkpoint, Vec::new()).unwrap();
    assert!(bytes.len() as u64 >= plan.data_bytes());
    GgufFile::from_bytes(Bytes::from_vec(bytes), &path()).unwrap()
}

fn opened(
    file: GgufFile,
    spec: &ModelSpec,
    content: GgufContent,
) -> Result<Checkpoint, ModelError> {
    Checkpoint::from_gguf_with_spec(file, &path(), spec.clone(), content)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn attentions(spec: &mut ModelSpec) -> impl Iterator<Item = &mut AttentionSpec> {
    spec.layers.iter_mut().map(|layer| match &mut layer.mixer {
        Mixer::Attention(attn) => attn,
        Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => panic!("no fixture has these"),
    })
}

#[test]
fn every_role_of_every_family_comes_back_bit_for_bit() {
    for name in FIXTURES {
        let source = fixture(name);
        let file = written(&source, GgufContent::Whole);
        let back = opened(file, source.spec(), GgufContent::Whole).unwrap();
        assert_eq!(back.roles(), source.roles(), "{name}");
        for role in source.roles() {
            let (ours, theirs) = (back.tensor(role).unwrap(), source.tensor(role).unwrap());
            assert_eq!(
                bits(&ours.to_f32()),
                bits(&theirs.to_f32()),
                "{name}: {role}"
            );
            assert_eq!(ours.value, StoredValue::Effective, "{name}: {role}");
            if ours.shape.len() > 1 {
                assert_eq!(ours.format, theirs.format, "{name}: {role}");
            }
        }
    }
}

#[test]
fn rows_of_queries_and_keys_are_moved_where_the_family_says_so() {
    let query = TensorRole::Layer(1, LayerTensor::Q);
    for (name, interleaved) in [
        ("llama", true),
        ("mistral-sliding", true),
        ("qwen2", false),
        ("gemma", false),
    ] {
        let source = fixture(name);
        let back = written(&source, GgufContent::Whole);
        let back = opened(back, source.spec(), GgufContent::Whole).unwrap();
        let (ours, theirs) = (back.tensor(query).unwrap(), source.tensor(query).unwrap());
        assert_eq!(ours.bytes[..] != theirs.bytes[..], interleaved, "{name}");
        assert_eq!(
            matches!(ours.rows, StoredRows::Interleaved { d_head: 24 }),
            interleaved,
            "{name}"
        );
    }
}

#[test]
fn a_norm_is_stored_as_it_acts() {
    let source = fixture("gemma2");
    let file = written(&source, GgufContent::Whole);
    let stored = source.tensor(TensorRole::FinalNorm).unwrap();
    let info = file.tensor("output_norm.weight").unwrap();
    assert_eq!(
        (info.dtype, info.shape.as_slice()),
        (Dtype::F32, [56].as_slice())
    );
    let first = u16::from_le_bytes([stored.bytes[0], stored.bytes[1]]);
    let expected = 1.0 + f32::from_bits(u32::from(first) << 16);
    assert_eq!(
        file.data("output_norm.weight").unwrap()[..4],
        expected.to_le_bytes()
    );
}

/// The file's own metadata give the spec back, up to what their types can hold.
#[test]
fn the_file_alone_says_the_same_model() {
    for name in FIXTURES {
        let source = fixture(name);
        let plan = GgufPlan::new(&source, GgufContent::Whole).unwrap();
        assert_eq!(plan.differences(), [] as [&str; 0], "{name}");
        let back = Checkpoint::from_gguf(written(&source, GgufContent::Whole), &path()).unwrap();
        let mut expected = source.spec().clone();
        if name == "mistral-sliding" {
            "llama".clone_into(&mut expected.family);
        }
        for attn in attentions(&mut expected) {
            let rope = attn.rope.as_mut().unwrap();
            if let RopeScaling::Llama3 { .. } = rope.scaling {
                let divisors = back
                    .tensor(TensorRole::TokenEmbedding)
                    .map(|_| back.container());
                let crate::checkpoint::Container::Gguf(file) = divisors.unwrap() else {
                    unreachable!()
                };
                let bytes = file.data("rope_freqs.weight").unwrap();
                let divisors: Vec<f32> = bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect();
                assert_eq!(divisors.len(), 12);
                assert!(divisors.iter().any(|d| *d != divisors[0]), "{divisors:?}");
                let stretched = crate::spec::RopeSpec {
                    scaling: RopeScaling::Divisors {
                        divisors: divisors.clone(),
                    },
                    ..rope.clone()
                };
                for (a, b) in stretched.frequencies(0).iter().zip(rope.frequencies(0)) {
                    assert!((a - b).abs() <= 1e-7 * b, "{a} {b}");
                }
                *rope = stretched;
            }
        }
        assert_eq!(back.spec(), &expected, "{name}");
    }
}

#[test]
fn optional_keys_appear_only_where_a_reader_would_be_wrong() {
    let keys = |name: &str| {
        let plan = GgufPlan::new(&fixture(name), GgufContent::Whole).unwrap();
        let optional = [
            "rope.freq_base_swa",
            "attention.scale",
            "attention.sliding_window_pattern",
        ];
        let arch = plan
            .metadata()
            .str("general.architecture")
            .unwrap()
            .unwrap()
            .to_owned();
        optional
            .into_iter()
            .filter(|key| plan.metadata().get(&format!("{arch}.{key}")).is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys("llama"), [] as [&str; 0]);
    assert_eq!(keys("mistral-sliding"), [] as [&str; 0]);
    assert_eq!(keys("gemma2"), ["attention.scale"]);
    assert_eq!(
        keys("gemma3"),
        ["attention.scale", "attention.sliding_window_pattern"]
    );
    let plan = GgufPlan::new(&fixture("gemma3"), GgufContent::Whole).unwrap();
    let period = plan
        .metadata()
        .get("gemma3.attention.sliding_window_pattern");
    assert_eq!(period, Some(&Value::U32(3)));
}

#[test]
fn what_the_keys_cannot_say_is_told() {
    let source = fixture("gemma2");
    let mut spec = source.spec().clone();
    attentions(&mut spec).nth(1).unwrap().window = Some(9);
    let family = crate::families::of_spec("x", &spec).unwrap();
    let plan = GgufPlan::new(&source, GgufContent::Whole).unwrap();
    let found =
        super::metadata::differences(&spec, family, plan.metadata(), &[], || plan.tensors());
    assert_eq!(
        found,
        [
            "the weights file alone would be read differently: layers[1].mixer.window is 9 and would be null"
        ]
    );
}

#[test]
fn a_file_without_attention_has_everything_else() {
    let source = fixture("qwen2");
    let file = written(&source, GgufContent::WithoutAttention);
    assert!(
        file.tensors()
            .iter()
            .all(|info| !info.name.contains("attn_q"))
    );
    let content = GgufContent::WithoutAttention;
    let back = opened(file, source.spec(), content).unwrap();
    let mut expected = source.roles();
    expected.retain(|role| content.includes(*role));
    assert_eq!(back.roles(), expected);
    assert!(expected.len() < source.roles().len());
    for role in expected {
        let (ours, theirs) = (back.tensor(role).unwrap(), source.tensor(role).unwrap());
        assert_eq!(bits(&ours.to_f32()), bits(&theirs.to_f32()), "{role}");
    }
    let refused = |file, content| {
        let error = opened(file, source.spec(), content).unwrap_err();
        error.to_string()
    };
    let missing = refused(written(&source, content), GgufContent::Whole);
    assert!(
        missing.starts_with("weights.gguf: 28 tensors missing: blk.0.attn_q.weight"),
        "{missing}"
    );
    let extra = refused(written(&source, GgufContent::Whole), content);
    assert!(
        extra.contains("28 tensors not accounted for: blk.0.attn_q.weight"),
        "{extra}"
    );
}

#[test]
fn a_gguf_source_keeps_its_bytes() {
    let first = written(&fixture("llama-rope3"), GgufContent::Whole);
    let again = Checkpoint::from_gguf(first, &path()).unwrap();
    let second = written(&again, GgufContent::Whole);
    let crate::checkpoint::Container::Gguf(first) = again.container() else {
        unreachable!()
    };
    assert_eq!(first.metadata(), second.metadata());
    assert_eq!(first.tensors(), second.tensors());
    for info in first.tensors() {
        assert_eq!(
            first.data(&info.name).unwrap()[..],
            second.data(&info.name).unwrap()[..],
            "{}",
            info.name
        );
    }
}

#[test]
fn a_head_that_llama_cpp_asks_for_repeats_the_embedding() {
    let source = fixture("olmo2");
    let mut headless = GgufPlan::new(&source, GgufContent::Whole).unwrap();
    headless
        .tensors
        .retain(|planned| planned.info.name != super::HEAD);
    let bytes = Bytes::from_vec(headless.write(&source, Vec::new()).unwrap());
    let mut spec = source.spec().clone();
    spec.head.tied = true;
    let file = GgufFile::from_bytes(bytes, &path()).unwrap();
    let tied = opened(file, &spec, GgufContent::Whole).unwrap();

    let plan = |checkpoint, content| GgufPlan::new(checkpoint, content).unwrap();
    assert!(!plan(&tied, GgufContent::Whole).has_more());
    assert!(!plan(&source, GgufContent::Portable).has_more());
    let portable = plan(&tied, GgufContent::Portable);
    assert!(portable.has_more());
    assert!(portable.peer_notes()[0].starts_with("output.weight repeats the embedding"));

    spec.head.tied = false;
    let file = written(&tied, GgufContent::Portable);
    let own = opened(file, &spec, GgufContent::Whole).unwrap();
    let values = |role| bits(&own.tensor(role).unwrap().to_f32());
    assert_eq!(values(TensorRole::Head), values(TensorRole::TokenEmbedding));
}

/// What is called verbatim is there, byte for byte; what is not there was not called so. Reads every fixture.
#[test]
fn tensors_that_pass_untouched_are_known_before_they_are_written() {
    let parity = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/data/parity");
    let mut n_families = 0;
    for entry in std::fs::read_dir(parity).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !fixture_dir(&name).join("model.safetensors").is_file() {
            continue;
        }
        n_families += 1;
        let source = fixture(&name);
        for content in [GgufContent::Whole, GgufContent::WithoutAttention] {
            let plan = GgufPlan::new(&source, content).unwrap();
            let file = written(&source, content);
            let verbatim = plan.verbatim(&source).unwrap();
            let (mut n_verbatim, mut n_changed) = (0, 0);
            for info in source.container().tensors() {
                let bytes = source.container().data(&info.name).unwrap();
                if !verbatim.contains(&info.name) {
                    n_changed += 1;
                    continue;
                }
                n_verbatim += 1;
                let layouts = source.layouts().iter();
                let layout = layouts.clone().find(|layout| layout.name == info.name);
                let layout = layout.unwrap();
                let row = bytes.len() / layout.n_rows() as usize;
                for run in &layout.runs {
                    let piece = &bytes[run.at as usize * row..][..run.count as usize * row];
                    let found = file.tensors().iter().any(|info| {
                        let data = file.data(&info.name).unwrap();
                        let mut at = (0..data.len()).step_by(row);
                        at.any(|at| data[at..].starts_with(piece))
                    });
                    assert!(found, "{name}, {content:?}: {}", info.name);
                }
            }
            assert!(n_verbatim > 0 && n_changed > 0, "{name}, {content:?}");
            assert_eq!(n_verbatim, verbatim.len(), "{name}, {content:?}");
        }
    }
    assert!(n_families > 25, "{n_families}");
}

#[test]
fn moved_rows_converted_norms_and_encoded_matrices_are_not_verbatim() {
    let has = |fixture_name: &str, tensor: &str| {
        let source = fixture(fixture_name);
        let plan = GgufPlan::new(&source, GgufContent::Whole).unwrap();
        plan.verbatim(&source).unwrap().contains(tensor)
    };
    assert!(!has("llama", "model.layers.1.self_attn.q_proj.weight"));
    assert!(!has("llama", "model.layers.1.self_attn.k_proj.weight"));
    assert!(has("llama", "model.layers.1.self_attn.v_proj.weight"));
    assert!(has("qwen3", "model.layers.1.self_attn.q_proj.weight"));
    assert!(has("qwen3", "model.layers.1.mlp.down_proj.weight"));
    assert!(!has("qwen3", "model.layers.1.input_layernorm.weight"));
    assert!(!has("gemma3", "model.norm.weight"));
    let source = fixture("qwen3");
    let mut plan = GgufPlan::new(&source, GgufContent::Whole).unwrap();
    let all = plan.verbatim(&source).unwrap();
    let mix = crate::quant_mix::Mix::parse("q8_0").unwrap();
    let quantization = super::Quantization {
        mix,
        requantize: false,
    };
    plan.quantize(&source, quantization).unwrap();
    let left = plan.verbatim(&source).unwrap();
    assert!(!all.is_empty() && left.is_empty(), "{left:?}");
}

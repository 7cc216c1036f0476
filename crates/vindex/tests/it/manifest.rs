//! The manifest carries every fact of a spec, and a damaged or hostile one is refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use larql_models::spec::{
    Activation, AltUpSpec, AttentionBias, AttentionSpec, BlockShape, EmbeddingSpec, Ffn, FfnSpec,
    GatedDeltaSpec, HeadSpec, KdaSpec, KvSource, LaurelSpec, LayerSpec, Mixer, MlaSpec, ModelSpec,
    MoeSpec, NormKind, NormSpec, NormWeight, ParallelDense, PerLayerEmbedding, QkNorm, RopeLayout,
    RopeScaling, RopeSpec, RouterInput, RouterScore, RouterSelect, SharedExpert,
};
use larql_models::tokenizer::SpecialTokens;
use larql_vindex::{
    CreatedBy, FORMAT_VERSION, FileEntry, Ignored, Level, Manifest, Source, SourceDigest,
    SourceFile, SourceKind, SourceTensor, TensorPlace, TextFile, TokenizerEntry, TokenizerPlace,
    Vindex, VindexError,
};
use serde_json::{Value, json};

use crate::support::{folder, run};

/// Gives numbers that occur nowhere else, so that a field that takes another's value is seen.
struct Numbers(u32);

impl Numbers {
    fn u(&mut self) -> u32 {
        self.0 += 1;
        self.0
    }

    /// No short decimal: only an exact reader gives it back.
    fn f(&mut self) -> f32 {
        self.u() as f32 / 3.0
    }

    fn d(&mut self) -> f64 {
        f64::from(self.u()) / 7.0
    }

    fn norm(&mut self, kind: NormKind, weight: NormWeight) -> NormSpec {
        NormSpec {
            kind,
            eps: self.f() * 1e-6,
            weight,
        }
    }

    fn rms(&mut self) -> NormSpec {
        self.norm(NormKind::Rms, NormWeight::Plain)
    }

    fn rope(&mut self, layout: RopeLayout, scaling: RopeScaling) -> RopeSpec {
        RopeSpec {
            theta: self.d() * 1e6,
            dims: self.u(),
            layout,
            scaling,
        }
    }

    fn ffn(&mut self, activation: Activation) -> FfnSpec {
        FfnSpec {
            d_mlp: self.u(),
            activation,
            bias: true,
            gate_cutoff: Some(self.f()),
        }
    }

    fn moe(&mut self, score: RouterScore, select: RouterSelect) -> MoeSpec {
        MoeSpec {
            n_experts: self.u(),
            n_active: self.u(),
            expert: self.ffn(Activation::Relu),
            score,
            select,
            renormalize: Some(self.f()),
            router_bias: true,
            selection_bias: true,
            scaling: self.f(),
            shared: Some(SharedExpert {
                ffn: self.ffn(Activation::ReluSquared),
                gated: true,
            }),
            parallel_dense: Some(ParallelDense {
                ffn: self.ffn(Activation::Gelu),
                dense_post: self.rms(),
                experts_pre: self.rms(),
                experts_post: self.rms(),
            }),
            router_input: match score {
                RouterScore::Softmax => RouterInput::FfnInput,
                RouterScore::Sigmoid | RouterScore::SoftmaxOfChosen => RouterInput::Scaled {
                    norm: self.rms(),
                    multiplier: self.f(),
                },
            },
            expert_scale: true,
        }
    }

    fn attention(
        &mut self,
        bias: AttentionBias,
        qk_norm: QkNorm,
        kv: KvSource,
        rope: Option<RopeSpec>,
    ) -> Mixer {
        Mixer::Attention(AttentionSpec {
            n_heads: self.u(),
            n_kv_heads: self.u(),
            d_head: self.u(),
            scale: self.f(),
            bias,
            qk_norm,
            v_norm: Some(self.norm(NormKind::Layer, NormWeight::Absent)),
            rope,
            window: Some(self.u()),
            softcap: Some(self.f()),
            sinks: true,
            clip_qkv: Some(self.f()),
            kv,
            gated: true,
        })
    }

    fn layer(&mut self, block: BlockShape, mixer: Mixer, ffn: Ffn) -> LayerSpec {
        LayerSpec {
            block,
            mixer,
            ffn,
            residual_multiplier: self.f(),
            layer_scalar: true,
            laurel: Some(LaurelSpec {
                rank: self.u(),
                norm: self.rms(),
            }),
        }
    }
}

/// Every field with a value of its own, every variant of every enum at least once.
fn full_spec() -> ModelSpec {
    let n = &mut Numbers(100);
    let scalings = [
        RopeScaling::Unscaled,
        RopeScaling::Linear { factor: n.d() },
        RopeScaling::Llama3 {
            factor: n.d(),
            low_freq_factor: n.d(),
            high_freq_factor: n.d(),
            original_context: n.u(),
        },
        RopeScaling::Yarn {
            factor: n.d(),
            beta_fast: n.d(),
            beta_slow: n.d(),
            original_context: n.u(),
            attention_factor: n.d(),
            truncate: true,
        },
        RopeScaling::Divisors {
            divisors: vec![n.f(), n.f()],
        },
        RopeScaling::LongRope {
            short: vec![n.d(), n.d()],
            long: vec![n.d(), n.d()],
            original_context: n.u(),
            attention_factor: n.d(),
        },
        RopeScaling::Proportional { live_pairs: n.u() },
    ];
    let mut ropes: Vec<RopeSpec> = scalings
        .map(|scaling| n.rope(RopeLayout::Split, scaling))
        .into();
    ropes.push(n.rope(RopeLayout::Interleaved, RopeScaling::Unscaled));
    let mut rope = || ropes.pop();
    let pre = |n: &mut Numbers| BlockShape::PreNorm {
        mixer: n.rms(),
        ffn: n.rms(),
    };
    let (absent, per_head) = (QkNorm::Absent, QkNorm::PerHead(n.rms()));
    let full_width = QkNorm::FullWidth(n.norm(NormKind::LayerWithBias, NormWeight::PlusOne));
    let mixers = [
        n.attention(AttentionBias::Absent, absent, KvSource::Own, rope()),
        n.attention(AttentionBias::Qkv, per_head, KvSource::KeyIsValue, rope()),
        n.attention(
            AttentionBias::Qkvo,
            full_width,
            KvSource::SharedFrom(77),
            rope(),
        ),
        n.attention(AttentionBias::Absent, absent, KvSource::Own, rope()),
        n.attention(AttentionBias::Absent, absent, KvSource::Own, rope()),
        n.attention(AttentionBias::Absent, absent, KvSource::Own, rope()),
        n.attention(AttentionBias::Absent, absent, KvSource::Own, rope()),
        Mixer::Mla(MlaSpec {
            n_heads: n.u(),
            q_rank: Some(n.u()),
            kv_rank: n.u(),
            d_nope: n.u(),
            d_rope: n.u(),
            d_value: n.u(),
            scale: n.f(),
            latent_norm: n.rms(),
            rope: rope(),
        }),
        Mixer::Kda(KdaSpec {
            n_heads: n.u(),
            d_head: n.u(),
            conv_width: n.u(),
            out_norm: n.rms(),
            qk_eps: n.f(),
        }),
        Mixer::GatedDelta(GatedDeltaSpec {
            n_key_heads: n.u(),
            n_value_heads: n.u(),
            d_key: n.u(),
            d_value: n.u(),
            conv_width: n.u(),
            out_norm: n.rms(),
            qk_eps: n.f(),
        }),
    ];
    assert!(rope().is_none(), "every rope is used");
    let blocks = [
        pre(n),
        BlockShape::Sandwich {
            mixer: n.rms(),
            mixer_post: n.rms(),
            ffn: n.rms(),
            ffn_post: n.rms(),
        },
        BlockShape::PostNorm {
            mixer_post: n.rms(),
            ffn_post: n.rms(),
        },
        BlockShape::Parallel { norm: n.rms() },
    ];
    let grouped = RouterSelect::Grouped {
        n_groups: n.u(),
        n_kept: n.u(),
        group_top: n.u(),
    };
    let ffns = [
        Ffn::Gated(n.ffn(Activation::Silu)),
        Ffn::Plain(n.ffn(Activation::GeluTanh)),
        Ffn::Gated(FfnSpec {
            d_mlp: n.u(),
            activation: Activation::ClampedGlu {
                alpha: n.f(),
                limit: n.f(),
            },
            bias: false,
            gate_cutoff: None,
        }),
        Ffn::Moe(n.moe(RouterScore::Softmax, RouterSelect::TopK)),
        Ffn::Moe(n.moe(RouterScore::Sigmoid, grouped)),
        Ffn::Moe(n.moe(RouterScore::SoftmaxOfChosen, RouterSelect::TopK)),
    ];
    let layers = mixers
        .into_iter()
        .zip(blocks.into_iter().cycle())
        .zip(ffns.into_iter().cycle())
        .map(|((mixer, block), ffn)| n.layer(block, mixer, ffn))
        .collect();
    ModelSpec {
        family: "imagined".into(),
        d_model: n.u(),
        d_vocab: n.u(),
        n_ctx: n.u(),
        embedding: EmbeddingSpec {
            multiplier: n.f(),
            learned_positions: Some(n.u()),
            per_layer: Some(PerLayerEmbedding {
                width: n.u(),
                d_vocab: n.u(),
                activation: Activation::Silu,
                token_multiplier: n.f(),
                context_multiplier: n.f(),
                input_multiplier: n.f(),
                projection_norm: n.rms(),
                post_norm: n.rms(),
            }),
        },
        layers,
        final_norm: n.rms(),
        head: HeadSpec {
            tied: true,
            bias: true,
            scale: n.f(),
            softcap: Some(n.f()),
        },
        altup: Some(AltUpSpec {
            n_streams: n.u(),
            active: n.u(),
            router_norm: n.rms(),
            router_multiplier: n.f(),
            magnitude_floor: n.f(),
            correct_scale: true,
        }),
    }
}

fn file(name: &str, digit: &str) -> FileEntry {
    FileEntry {
        name: name.into(),
        size: 12,
        sha256: digit.repeat(64),
    }
}

fn source_file(name: &str, changed_sha256: Option<String>) -> SourceFile {
    SourceFile {
        name: name.into(),
        size: 34,
        digest: SourceDigest::Parts {
            header_sha256: "c".repeat(64),
            changed_sha256,
        },
    }
}

fn full_manifest() -> Manifest {
    let mut manifest = Manifest {
        format_version: FORMAT_VERSION,
        created_by: CreatedBy {
            name: "larql".into(),
            version: "9.8.7".into(),
        },
        digest: String::new(),
        level: Level::All,
        files: vec![file("weights.gguf", "a"), file("tokenizer.json", "b")],
        tokenizer: Some(TokenizerEntry {
            place: TokenizerPlace::File,
            special: SpecialTokens {
                bos: Some(1),
                eos: vec![2, 3],
                unk: Some(4),
                pad: Some(5),
                add_bos: true,
                add_eos: true,
                prefix: vec![1],
            },
            chat_template: Some("{{ x }}\n\u{e9}".into()),
        }),
        source: Source {
            kind: SourceKind::HuggingFace,
            name: "source".into(),
            files: vec![
                source_file("model-1.safetensors", Some("e".repeat(64))),
                source_file("model 2.safetensors", None),
            ],
            texts: vec![TextFile {
                name: "config.json".into(),
                text: "{\"a\": 1e-05}\n".into(),
            }],
            tensors: vec![SourceTensor {
                name: "w".into(),
                dtype: "BF16".into(),
                shape: vec![3, 2],
                file: 1,
                place: TensorPlace::Kept,
            }],
        },
        ignored: vec![Ignored {
            name: "x".into(),
            reason: "not needed".into(),
        }],
        notes: vec!["a note".into()],
        spec: full_spec(),
        checksum: String::new(),
    };
    manifest.seal();
    manifest
}

fn decode(text: &str) -> Result<Manifest, VindexError> {
    Manifest::decode(text.as_bytes(), Path::new("vindex.json"))
}

#[test]
fn every_field_survives() {
    let manifest = full_manifest();
    let read = decode(&manifest.encode()).unwrap();
    assert_eq!(read, manifest);
    assert_eq!(read.encode(), manifest.encode());
    let Mixer::Attention(ours) = &read.spec.layers[0].mixer else {
        unreachable!()
    };
    let Mixer::Attention(theirs) = &manifest.spec.layers[0].mixer else {
        unreachable!()
    };
    assert_eq!(ours.scale.to_bits(), theirs.scale.to_bits());
}

/// Pointers to every leaf.
fn leaves(at: String, json: &Value, found: &mut Vec<String>) {
    match json {
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| leaves(format!("{at}/{key}"), value, found)),
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(i, value)| leaves(format!("{at}/{i}"), value, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => found.push(at),
    }
}

/// Whoever changes, removes or adds one fact of the spec is noticed: the manifest is refused, or another spec is read.
#[test]
fn no_fact_of_the_spec_can_change_unnoticed() {
    let full = full_manifest();
    let mut n_leaves = 0;
    // One layer at a time, because each of the thousand changed manifests is read as a whole.
    for layer in &full.spec.layers {
        let mut manifest = full.clone();
        manifest.spec.layers = vec![layer.clone()];
        manifest.seal();
        n_leaves += every_change_is_noticed(&manifest);
    }
    assert!(n_leaves > 400, "{n_leaves} leaves");
}

fn every_change_is_noticed(manifest: &Manifest) -> usize {
    let json: Value = serde_json::from_str(&manifest.encode()).unwrap();
    let mut pointers = Vec::new();
    leaves("/spec".into(), &json["spec"], &mut pointers);
    let refused = |what: String, json: &Value| {
        let error = decode(&json.to_string()).unwrap_err().to_string();
        assert!(
            error.contains("`spec") || error.contains("`digest`: "),
            "{what}: {error}"
        );
    };
    let mut last_parent = String::new();
    for pointer in &pointers {
        let mut changed = json.clone();
        let leaf = changed.pointer_mut(pointer).unwrap();
        *leaf = match &*leaf {
            Value::Null => json!(1),
            Value::Bool(b) => json!(!b),
            Value::Number(x) if x.is_u64() => json!(x.as_u64().unwrap() + 1),
            Value::Number(x) => json!(x.as_f64().unwrap() * 2.0),
            Value::String(s) => json!(format!("{s}x")),
            Value::Array(_) | Value::Object(_) => unreachable!(),
        };
        refused(format!("{pointer} changed"), &changed);
        let spec = serde_json::from_value::<ModelSpec>(changed["spec"].clone());
        assert_ne!(
            spec.ok().as_ref(),
            Some(&manifest.spec),
            "{pointer} is read by nobody"
        );

        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let mut removed = json.clone();
        match removed.pointer_mut(parent).unwrap() {
            Value::Object(map) => drop(map.shift_remove(key)),
            Value::Array(list) => drop(list.remove(key.parse().unwrap())),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => unreachable!(),
        }
        refused(format!("{pointer} removed"), &removed);

        if std::mem::replace(&mut last_parent, parent.to_owned()) != parent {
            let mut added = json.clone();
            if let Value::Object(map) = added.pointer_mut(parent).unwrap() {
                map.insert("surprise".into(), json!(1));
                refused(format!("{parent} with a key more"), &added);
            }
        }
    }
    pointers.len()
}

/// One change to a sound manifest.
type Edit = fn(&mut Value);

#[test]
fn hostile_manifests_are_refused_by_field() {
    let good: Value = serde_json::from_str(&full_manifest().encode()).unwrap();
    let cases: &[(Edit, &str)] = &[
        (
            |m| m["format_version"] = json!(2),
            "format version 2, this program reads version 1",
        ),
        (
            |m| m["format_version"] = json!(u64::MAX),
            "format version 18446744073709551615, this program reads version 1",
        ),
        (
            |m| m["format_version"] = json!("1"),
            "`format_version`: invalid type: string \"1\", expected u64",
        ),
        (
            |m| drop(m.as_object_mut().unwrap().shift_remove("format_version")),
            "`format_version`: missing field `format_version`",
        ),
        (
            |m| m["level"] = json!("attention"),
            "`level`: unknown variant `attention`, expected one of `browse`, `inference`, `all`",
        ),
        (
            |m| m["files"][0]["size"] = json!(-1),
            "`files`: invalid value: integer `-1`, expected u64",
        ),
        (
            |m| m["files"] = json!({}),
            "`files`: invalid type: map, expected a sequence",
        ),
        (
            |m| m["spec"]["d_model"] = json!(4294967296u64),
            "`spec`: invalid value: integer `4294967296`, expected u32",
        ),
        (
            |m| m["spec"]["rope"] = json!(1),
            "`spec`: unknown field `rope`",
        ),
        (|m| m["surprise"] = json!(1), "unknown field `surprise`"),
        (
            |m| m["spec"]["layers"] = json!([]),
            "`spec.layers`: 0 layers, expected 1 to 4096",
        ),
        (
            |m| {
                let layer = m["spec"]["layers"][9].clone();
                m["spec"]["layers"] = Value::Array(vec![layer; 4097]);
            },
            "`spec.layers`: 4097 layers, expected 1 to 4096",
        ),
        (
            |m| m["files"][0]["name"] = json!("../weights.gguf"),
            "`files[0].name`: \"../weights.gguf\" is not a plain file name",
        ),
        (
            |m| m["files"][1]["name"] = json!("/etc/passwd"),
            "`files[1].name`: \"/etc/passwd\" is not a plain file name",
        ),
        (
            |m| m["files"][1]["name"] = json!(".."),
            "`files[1].name`: \"..\" is not a plain file name",
        ),
        (
            |m| m["files"][1]["name"] = json!(""),
            "`files[1].name`: \"\" is not a plain file name",
        ),
        (
            |m| m["files"][1]["name"] = json!("a\\..\\b"),
            "`files[1].name`: `a\\..\\b`, expected weights.gguf or tokenizer.json",
        ),
        (
            |m| m["files"][1]["name"] = json!("weights.gguf"),
            "`files[1].name`: `weights.gguf` is listed twice",
        ),
        (
            |m| m["files"][1]["name"] = json!("knowledge.db"),
            "`files[1].name`: `knowledge.db`, expected weights.gguf or tokenizer.json",
        ),
        (
            |m| drop(m["files"].as_array_mut().unwrap().remove(0)),
            "`files`: weights.gguf is not listed",
        ),
        (
            |m| drop(m["files"].as_array_mut().unwrap().remove(1)),
            "`tokenizer.place`: tokenizer.json, which `files` does not list",
        ),
        (
            |m| m["tokenizer"] = Value::Null,
            "`files`: tokenizer.json is listed, but `tokenizer` does not use it",
        ),
        (
            |m| m["files"] = Value::Array(vec![m["files"][0].clone(); 4]),
            "`files`: 4 entries, at most 3",
        ),
        (
            |m| m["files"][0]["sha256"] = json!("A".repeat(64)),
            "`files[0].sha256`: not 64 lower-case hexadecimal digits",
        ),
        (
            |m| m["files"][0]["sha256"] = json!("ab"),
            "`files[0].sha256`: not 64 lower-case hexadecimal digits",
        ),
        (
            |m| m["checksum"] = json!("0".repeat(63)),
            "`checksum`: not 64 lower-case hexadecimal digits",
        ),
        (|m| m["notes"][0] = json!("another note"), "`checksum`: "),
        (
            |m| m["created_by"]["version"] = json!("9.8.6"),
            "`checksum`: ",
        ),
        (
            |m| m["source"]["texts"][0]["text"] = json!("{}"),
            "`checksum`: ",
        ),
        (|m| m["level"] = json!("inference"), "`checksum`: "),
        (|m| m["files"][0]["size"] = json!(13), "`checksum`: "),
        (
            |m| m["files"][0]["sha256"] = json!("0".repeat(64)),
            "`digest`: ",
        ),
        (
            |m| m["tokenizer"]["special"]["add_bos"] = json!(false),
            "`digest`: ",
        ),
        (
            |m| m["digest"] = json!("0"),
            "`digest`: not 64 lower-case hexadecimal digits",
        ),
        (
            |m| m["source"]["files"][0]["header_sha256"] = json!("C".repeat(64)),
            "`source.files[0].header_sha256`: not 64 lower-case hexadecimal digits",
        ),
        (
            |m| m["source"]["files"][0]["changed_sha256"] = json!("ab"),
            "`source.files[0].changed_sha256`: not 64 lower-case hexadecimal digits",
        ),
        (
            |m| m["source"]["files"][0]["changed_sha256"] = Value::Null,
            "`checksum`: ",
        ),
        (
            |m| m["source"]["files"][0]["sha256"] = json!("a".repeat(64)),
            "`source`: \"model-1.safetensors\" has a digest of the whole and digests of parts",
        ),
        (
            |m| m["source"]["files"][1]["header_sha256"] = Value::Null,
            "`source`: \"model 2.safetensors\" has neither sha256 nor header_sha256",
        ),
        (
            |m| m["source"]["files"][1]["md5"] = json!("a"),
            "`source`: unknown field `md5`",
        ),
        (
            |m| {
                let file = m["source"]["files"][1].as_object_mut().unwrap();
                file.shift_remove("changed_sha256");
            },
            "`source.files[1].changed_sha256`: missing",
        ),
        (
            |m| m["source"]["kind"] = json!("gguf"),
            "`source.files[0].header_sha256`: stated of a GGUF file, which has `sha256`",
        ),
        (
            |m| m["source"]["files"][1]["name"] = json!("model-1.safetensors"),
            "`source.files[1].name`: `model-1.safetensors` is listed twice",
        ),
        (
            |m| m["source"]["files"][1]["name"] = json!("a/b"),
            "`source.files[1].name`: \"a/b\" is not a plain file name",
        ),
        (
            |m| m["source"]["texts"][0]["name"] = json!("../x"),
            "`source.texts[0].name`: \"../x\", expected one of config.json",
        ),
        (
            |m| m["tokenizer"]["special"]["eos"] = json!([1.5]),
            "`tokenizer`: invalid type: floating point `1.5`, expected u32",
        ),
    ];
    for (edit, expected) in cases {
        let mut json = good.clone();
        edit(&mut json);
        let error = decode(&json.to_string()).unwrap_err().to_string();
        let expected = format!("vindex.json: {expected}");
        assert!(
            error.starts_with(&expected),
            "{error}\n  expected {expected}"
        );
    }
}

#[test]
fn what_the_types_would_let_pass_is_refused_too() {
    let good: Value = serde_json::from_str(&full_manifest().encode()).unwrap();
    let cases: &[(Edit, &str)] = &[
        (
            |m| {
                drop(
                    m["spec"]["layers"][0]["mixer"]
                        .as_object_mut()
                        .unwrap()
                        .shift_remove("window"),
                )
            },
            "`spec.layers[0].mixer.window`: missing",
        ),
        (
            |m| m["spec"]["layers"][0]["mixer"]["rope"]["scaling"]["factor"] = json!(8.0),
            "`spec.layers[0].mixer.rope.scaling.factor`: not a field of this version",
        ),
        (
            |m| m["spec"]["layers"][0]["ffn"]["activation"]["limit"] = json!(7.0),
            "`spec.layers[0].ffn.activation.limit`: not a field of this version",
        ),
        (
            |m| m["spec"]["head"]["scale"] = json!(0.1234567890123),
            "`spec.head.scale`: 0.1234567890123 is not exactly representable, nearest 0.12345679",
        ),
    ];
    for (edit, expected) in cases {
        let mut json = good.clone();
        edit(&mut json);
        let error = decode(&json.to_string()).unwrap_err().to_string();
        assert_eq!(error, format!("vindex.json: {expected}"));
    }
}

#[test]
fn texts_that_are_no_manifest_are_refused() {
    let text = full_manifest().encode();
    for cut in [0, 1, text.len() / 2, text.len() - 3] {
        let error = decode(&text[..cut]).unwrap_err().to_string();
        assert!(
            error.starts_with("vindex.json: not valid JSON: EOF while parsing"),
            "{error}"
        );
    }
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let doubled = text.replacen("\"notes\": [", "\"notes\": [], \"notes\": [", 1);
    for (text, expected) in [
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "`format_version`: missing field `format_version`"),
        (
            &deep,
            "not valid JSON: recursion limit exceeded at line 1 column 128",
        ),
        (&doubled, "duplicate field `notes`"),
    ] {
        let error = decode(text).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("vindex.json: {expected}")),
            "{error}"
        );
    }
    let error = Manifest::decode(&[b'"', 0xff, b'"'], Path::new("vindex.json")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("vindex.json: not valid JSON: invalid unicode"),
        "{error}"
    );
}

/// A real vindex on disk, whose manifest is then changed and its digest mended, as an attacker would.
fn reopened_after(edit: impl Fn(&mut Manifest)) -> (PathBuf, VindexError) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("v");
    run(&folder(dir.path(), "gemma"), &out, Level::All).unwrap();
    let mut manifest = Vindex::open(&out).unwrap().manifest().clone();
    edit(&mut manifest);
    manifest.seal();
    fs::write(out.join("vindex.json"), manifest.encode()).unwrap();
    let error = match Vindex::open(&out) {
        Err(error) => error,
        Ok(vindex) => vindex.checkpoint().unwrap_err(),
    };
    (out, error)
}

#[test]
fn a_consistent_manifest_must_still_fit_its_files() {
    let (out, error) = reopened_after(|m| m.files[0].size += 1);
    let size = 1 + error
        .to_string()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap();
    let weights = out.join("weights.gguf").display().to_string();
    assert_eq!(
        error.to_string(),
        format!("{weights}: {} bytes, the manifest says {size}", size - 1)
    );
    let (out, error) = reopened_after(|m| {
        let layer = m.spec.layers[0].clone();
        m.spec.layers.push(layer);
    });
    let weights = out.join("weights.gguf").display().to_string();
    assert!(
        error.to_string().starts_with(&format!(
            "{weights}: 9 tensors missing: blk.4.attn_norm.weight"
        )),
        "{error}"
    );
    let (_, error) = reopened_after(|m| drop(m.spec.layers.pop()));
    assert!(
        error
            .to_string()
            .contains("9 tensors not accounted for: blk.3.attn_norm.weight"),
        "{error}"
    );
    let (out, error) = reopened_after(|m| m.spec.d_model = 64);
    let weights = out.join("weights.gguf").display().to_string();
    assert_eq!(
        error.to_string(),
        format!(
            "{weights}: tensor `token_embd.weight` has shape [300, 56], the configuration needs [300, 64]"
        )
    );
}

#[test]
fn a_huge_manifest_is_refused_by_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vindex.json");
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let error = Vindex::open(dir.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{}: 1099511627776 bytes, a manifest has at most 33554432",
            path.display()
        )
    );
    assert!(Vindex::is_vindex(dir.path()) && !Vindex::is_vindex(&path));
}

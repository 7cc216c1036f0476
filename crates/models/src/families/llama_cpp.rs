//! What llama.cpp computes otherwise than a spec says, whatever a GGUF file states.
//!
//! Its loaders and graphs have facts of the published models built in. A model that differs in one of them becomes a file
//! that does not load there or, worse, one that loads and answers plausibly; whoever writes the file has to say so. This is
//! a table of those facts by architecture, beside what all of them share: no windows, scores times `d_head^-0.5`, rotation
//! in every layer, experts in every layer or in none, weights divided by their sum, `SiLU`, no bias but on queries, keys
//! and values, and the embedding as head where a file has no other. Every sentence begins with `llama.cpp`.
//!
//! It is not about a file that is read alone by this crate: see [`crate::to_gguf::GgufPlan::differences`].

use super::by_name;
use crate::spec::{
    Activation, AltUpSpec, AttentionBias, AttentionSpec, Ffn, FfnSpec, GatedDeltaSpec, KdaSpec,
    KvSource, Mixer, ModelSpec, MoeSpec, RopeScaling, RopeSpec, RouterScore, RouterSelect,
};

/// Rotations between which YaRN blends, which are read in none of these architectures.
const BETA_FAST: f64 = 32.0;
const BETA_SLOW: f64 = 1.0;

/// Sizes of the models with parallel streams.
const N_STREAMS: u32 = 4;
const LAUREL_RANK: u32 = 64;
const PER_LAYER_WIDTH: u32 = 256;
const OWN_KV_LAYERS: usize = 20;
const CUTOFF_LAYERS: usize = 10;
const CUTOFF: f64 = 1.644_853_6;

/// Scores by which a group of experts is ranked.
const GROUP_TOP: u32 = 2;

/// How far, relatively, two numbers may be apart that a file holds in f32.
const ROUNDING: f64 = 1e-6;

/// The same for a cutoff, which llama.cpp multiplies by the deviation of a sample: that of thousands of features is as near.
const CUTOFF_ROUNDING: f64 = 1e-3;

/// A way in which an architecture differs from what all share.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fact {
    /// It reads windows.
    Windows,
    /// It reads the factor on scores.
    StatedScale,
    /// The factor on scores is 1.
    UnitScale,
    /// The factor on scores is `(d_model / n_heads)^-0.5` in the model with so many layers.
    ModelShareScale(usize),
    /// It asks for a head of its own, even where that is the embedding.
    HeadNeeded,
    /// It takes the embedding as head and no other.
    EmbeddingIsHead,
    /// The query heads together are as wide as the model.
    HeadsFillModel,
    /// It asks for as many K/V heads as query heads.
    KvHeadsAreHeads,
    /// Whole heads turn.
    WholeHeads,
    /// No layer turns, or one position table stands in for it.
    NoRope,
    /// Only layers with a window turn.
    RopeInWindows,
    /// The last of each so many layers does not turn.
    NoRopeEvery(usize),
    /// It reads one divisor per frequency.
    Divisors,
    /// It reads the two lists of divisors.
    LongRope,
    /// It reads all biases that a file has.
    Biases,
    /// It asks for all biases.
    BiasesNeeded,
    /// The nonlinearity.
    Act(Activation),
    /// Layers before the first with experts may be dense.
    DenseFirst,
    /// It reads how experts are weighted.
    StatedRouter,
    /// Weights of experts are not divided by their sum.
    RawExpertWeights,
    /// The sizes of parallel streams are constants.
    FixedStreams,
}

use Fact::*;

const GELU: Fact = Act(Activation::GeluTanh);

/// Architectures with what sets each apart.
const READERS: &[(&str, &[Fact])] = &[
    ("llama", &[WholeHeads, Divisors, LongRope, Biases]),
    ("qwen2", &[WholeHeads, HeadsFillModel]),
    (
        "qwen2moe",
        &[WholeHeads, HeadsFillModel, HeadNeeded, RawExpertWeights],
    ),
    ("qwen3", &[WholeHeads]),
    ("qwen3moe", &[WholeHeads]),
    ("qwen3next", &[]),
    ("olmo2", &[WholeHeads, HeadsFillModel, HeadNeeded, Windows]),
    (
        "olmoe",
        &[
            WholeHeads,
            HeadsFillModel,
            HeadNeeded,
            KvHeadsAreHeads,
            RawExpertWeights,
        ],
    ),
    ("phi2", &[HeadsFillModel, HeadNeeded, BiasesNeeded, GELU]),
    ("phi3", &[HeadsFillModel, LongRope]),
    (
        "granite",
        &[WholeHeads, Divisors, LongRope, Biases, StatedScale],
    ),
    (
        "granitemoe",
        &[WholeHeads, Divisors, LongRope, Biases, StatedScale],
    ),
    (
        "starcoder2",
        &[WholeHeads, HeadsFillModel, BiasesNeeded, GELU],
    ),
    ("gpt2", &[HeadsFillModel, BiasesNeeded, GELU, NoRope]),
    (
        "gpt-oss",
        &[
            WholeHeads,
            HeadNeeded,
            Windows,
            Biases,
            Act(Activation::ClampedGlu {
                alpha: 1.702,
                limit: 7.0,
            }),
        ],
    ),
    (
        "cohere2",
        &[HeadsFillModel, EmbeddingIsHead, Windows, RopeInWindows],
    ),
    ("smollm3", &[WholeHeads, NoRopeEvery(4)]),
    ("glm4", &[]),
    (
        "arcee",
        &[WholeHeads, Divisors, Act(Activation::ReluSquared)],
    ),
    ("stablelm", &[HeadsFillModel, HeadNeeded]),
    ("deepseek2", &[DenseFirst, StatedRouter]),
    ("gemma", &[EmbeddingIsHead, GELU]),
    (
        "gemma2",
        &[EmbeddingIsHead, GELU, Windows, ModelShareScale(46)],
    ),
    ("gemma3", &[GELU, Windows, ModelShareScale(62)]),
    ("gemma3n", &[GELU, Windows, UnitScale, FixedStreams]),
    ("gemma4", &[GELU, Windows, UnitScale, Divisors]),
    ("kimi-linear", &[HeadNeeded, NoRope, DenseFirst]),
];

fn facts(spec: &ModelSpec) -> &'static [Fact] {
    let arch = by_name(&spec.family).map(|family| family.gguf_arch);
    READERS
        .iter()
        .find(|(name, _)| Some(*name) == arch)
        .map_or(&[], |(_, facts)| facts)
}

/// Whether llama.cpp asks for a head in a file of this architecture, even where it is the embedding.
pub(crate) fn wants_head(spec: &ModelSpec) -> bool {
    facts(spec).contains(&HeadNeeded)
}

/// What llama.cpp makes otherwise of the model, in sentences; a copy of the embedding for [`wants_head`] is taken as given.
pub(crate) fn reads_otherwise(spec: &ModelSpec) -> Vec<String> {
    let facts = facts(spec);
    let mut notes = Notes {
        facts,
        said: Vec::new(),
    };
    if facts.contains(&EmbeddingIsHead) && !spec.head.tied {
        notes.refuses("takes the embedding as head in this architecture");
    }
    for (i, layer) in spec.layers.iter().enumerate() {
        match &layer.mixer {
            Mixer::Attention(attention) => notes.attention(spec, i, attention),
            Mixer::Kda(kda) => notes.kda(spec, kda),
            Mixer::GatedDelta(delta) => notes.gated_delta(spec, delta),
            Mixer::Mla(mla) => {
                if let Some(rope) = &mla.rope {
                    notes.scaling(rope);
                }
            }
        }
        match &layer.ffn {
            Ffn::Gated(ffn) | Ffn::Plain(ffn) => notes.ffn(ffn),
            Ffn::Moe(moe) => notes.moe(moe),
        }
    }
    notes.expert_layers(spec);
    if facts.contains(&FixedStreams) {
        notes.streams(spec);
    }
    notes.said
}

/// Sentences, each said once however many layers give cause.
struct Notes {
    facts: &'static [Fact],
    said: Vec<String>,
}

impl Notes {
    fn has(&self, fact: Fact) -> bool {
        self.facts.contains(&fact)
    }

    /// It answers, and otherwise than the model does.
    fn answers(&mut self, what: impl AsRef<str>) {
        let sentence = format!("llama.cpp {}", what.as_ref());
        if !self.said.contains(&sentence) {
            self.said.push(sentence);
        }
    }

    /// It does not load the file.
    fn refuses(&mut self, why: impl AsRef<str>) {
        self.answers(format!("{}, so it does not load this file", why.as_ref()));
    }

    fn attention(&mut self, spec: &ModelSpec, layer: usize, attention: &AttentionSpec) {
        let &AttentionSpec {
            n_heads,
            n_kv_heads,
            d_head,
            scale,
            window,
            clip_qkv,
            bias,
            ..
        } = attention;
        if let Some(window) = window
            && !self.has(Windows)
        {
            self.answers(format!(
                "ignores the window of {window} in this architecture: from position {window} on its answers differ"
            ));
        }
        if let Some(expected) = self.scale(spec, n_heads, d_head)
            && !near(f64::from(scale), expected, ROUNDING)
        {
            self.answers(format!(
                "multiplies scores by {expected:.6} in this architecture, not by {scale:.6}"
            ));
        }
        if self.has(HeadsFillModel) && n_heads * d_head != spec.d_model {
            self.refuses("expects heads that together are as wide as the model");
        }
        if self.has(KvHeadsAreHeads) && n_kv_heads != n_heads {
            self.refuses("expects as many K/V heads as query heads in this architecture");
        }
        if clip_qkv.is_some() {
            self.answers("does not clamp queries, keys and values in this architecture");
        }
        match bias {
            AttentionBias::Qkvo => self.bias(true),
            AttentionBias::Absent | AttentionBias::Qkv => self.bias(false),
        }
        self.rope(layer, attention);
    }

    /// The factor on scores; `None` where the file states it.
    fn scale(&self, spec: &ModelSpec, n_heads: u32, d_head: u32) -> Option<f64> {
        if self.has(StatedScale) {
            return None;
        }
        if self.has(UnitScale) {
            return Some(1.0);
        }
        let width = match self.has(ModelShareScale(spec.n_layers())) {
            true => spec.d_model / n_heads,
            false => d_head,
        };
        Some(f64::from(width).powf(-0.5))
    }

    /// Biases beside those of queries, keys and values.
    fn bias(&mut self, is_there: bool) {
        match is_there {
            true if !self.has(Biases) && !self.has(BiasesNeeded) => {
                self.refuses("has biases only on queries, keys and values in this architecture");
            }
            false if self.has(BiasesNeeded) => {
                self.refuses("expects a bias on every projection in this architecture");
            }
            true | false => {}
        }
    }

    fn rope(&mut self, layer: usize, attention: &AttentionSpec) {
        let turns = if self.has(NoRope) {
            false
        } else if self.has(RopeInWindows) {
            attention.window.is_some()
        } else {
            !self.facts.iter().any(
                |fact| matches!(fact, NoRopeEvery(period) if (layer + 1).is_multiple_of(*period)),
            )
        };
        match (&attention.rope, turns) {
            (None, false) => {}
            (None, true) => self.answers(format!("rotates queries and keys in layer {layer} too")),
            (Some(_), false) => {
                self.answers(format!("rotates no queries and keys in layer {layer}"));
            }
            (Some(rope), true) => {
                if self.has(WholeHeads) && rope.dims != attention.d_head {
                    self.refuses(format!(
                        "rotates whole heads of {} in this architecture, not {} dimensions",
                        attention.d_head, rope.dims
                    ));
                }
                self.scaling(rope);
            }
        }
    }

    fn scaling(&mut self, rope: &RopeSpec) {
        match &rope.scaling {
            RopeScaling::Unscaled | RopeScaling::Linear { .. } => {}
            RopeScaling::Yarn {
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                if (*beta_fast, *beta_slow) != (BETA_FAST, BETA_SLOW) {
                    self.answers(format!(
                        "takes the ends of YaRN's ramp at {BETA_FAST} and {BETA_SLOW} rotations, not at {beta_fast} and {beta_slow}"
                    ));
                }
                if !truncate {
                    self.answers("rounds the ends of YaRN's ramp to whole dimensions");
                }
            }
            RopeScaling::Llama3 { .. }
            | RopeScaling::Divisors { .. }
            | RopeScaling::Proportional { .. } => {
                if !self.has(Divisors) {
                    self.refuses("reads no divisors of frequencies in this architecture");
                }
            }
            RopeScaling::LongRope {
                original_context, ..
            } if self.has(LongRope) => self.answers(format!(
                "takes the long divisors of frequencies wherever its context is longer than {original_context} tokens, however short the text is"
            )),
            RopeScaling::LongRope { .. } => {
                self.refuses("reads no divisors of frequencies in this architecture");
            }
        }
    }

    fn kda(&mut self, spec: &ModelSpec, kda: &KdaSpec) {
        let heads = spec.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::Mla(mla) => Some(mla.n_heads),
            Mixer::Attention(attention) => Some(attention.n_heads),
            Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
        });
        if heads.is_some_and(|heads| heads != kda.n_heads) {
            self.refuses("expects as many heads in linear layers as in the others");
        }
        self.qk_eps(spec, kda.qk_eps);
    }

    fn gated_delta(&mut self, spec: &ModelSpec, delta: &GatedDeltaSpec) {
        if delta.d_key != delta.d_value {
            self.refuses("expects key and value heads of one width in linear layers");
        }
        self.qk_eps(spec, delta.qk_eps);
    }

    fn qk_eps(&mut self, spec: &ModelSpec, eps: f32) {
        let norm = spec.final_norm.eps;
        if !near(f64::from(eps), f64::from(norm), ROUNDING) {
            self.answers(format!(
                "adds {norm:e} where linear layers normalize queries and keys, not {eps:e}"
            ));
        }
    }

    fn ffn(&mut self, ffn: &FfnSpec) {
        self.bias(ffn.bias);
        self.activation(ffn.activation);
    }

    fn activation(&mut self, activation: Activation) {
        let mut expected = Activation::Silu;
        for fact in self.facts {
            if let Act(built_in) = fact {
                expected = *built_in;
            }
        }
        if activation != expected {
            self.answers(format!(
                "computes {} in the FFNs of this architecture, not {}",
                shown(expected),
                shown(activation)
            ));
        }
    }

    fn moe(&mut self, moe: &MoeSpec) {
        self.activation(moe.expert.activation);
        let is_normalized = moe.renormalize.is_some() || moe.score == RouterScore::SoftmaxOfChosen;
        if !self.has(StatedRouter) {
            match (is_normalized, self.has(RawExpertWeights)) {
                (true, true) => {
                    self.answers("does not divide the weights of chosen experts by their sum");
                }
                (false, false) => {
                    self.answers("divides the weights of chosen experts by their sum");
                }
                (true, false) | (false, true) => {}
            }
        }
        if let RouterSelect::Grouped {
            group_top,
            n_groups: 2..,
            ..
        } = moe.select
            && group_top != GROUP_TOP
        {
            self.answers(format!(
                "ranks groups of experts by the sum of {GROUP_TOP} scores, not of {group_top}"
            ));
        }
    }

    /// Which layers have experts.
    fn expert_layers(&mut self, spec: &ModelSpec) {
        let mut layers = spec
            .layers
            .iter()
            .map(|layer| matches!(layer.ffn, Ffn::Moe(_)))
            .skip_while(|has| self.has(DenseFirst) && !has);
        let first = layers.next();
        if first.is_some() && layers.any(|has| Some(has) != first) {
            self.refuses("expects a router in every layer");
        }
    }

    fn streams(&mut self, spec: &ModelSpec) {
        let sizes = [
            (
                "parallel streams",
                N_STREAMS,
                spec.altup.map(|altup| altup.n_streams),
            ),
            (
                "dimensions of the low-rank branch",
                LAUREL_RANK,
                spec.layers
                    .first()
                    .and_then(|layer| Some(layer.laurel?.rank)),
            ),
            (
                "dimensions of per-layer embeddings",
                PER_LAYER_WIDTH,
                spec.embedding
                    .per_layer
                    .as_ref()
                    .map(|per_layer| per_layer.width),
            ),
        ];
        for (what, built_in, ours) in sizes {
            if ours != Some(built_in) {
                self.refuses(format!("has {built_in} {what} built in"));
            }
        }
        if !matches!(spec.altup, Some(AltUpSpec { active: 0, .. })) {
            self.answers("works on the first of the parallel streams");
        }
        for (i, layer) in spec.layers.iter().enumerate() {
            if let Mixer::Attention(attention) = &layer.mixer
                && matches!(attention.kv, KvSource::SharedFrom(_)) != (i >= OWN_KV_LAYERS)
            {
                self.answers(format!(
                    "takes the keys and values of earlier layers from layer {OWN_KV_LAYERS} on"
                ));
            }
            let cutoff = match &layer.ffn {
                Ffn::Gated(ffn) => ffn.gate_cutoff.map(|cutoff| (cutoff, ffn.d_mlp)),
                Ffn::Plain(_) | Ffn::Moe(_) => None,
            };
            let is_same = match (cutoff, i < CUTOFF_LAYERS) {
                (None, false) => true,
                (Some((cutoff, d_mlp)), true) => {
                    // It divides by the features less one.
                    let sample = (f64::from(d_mlp) / f64::from(d_mlp.max(2) - 1)).sqrt();
                    near(f64::from(cutoff), CUTOFF * sample, CUTOFF_ROUNDING)
                }
                (None, true) | (Some(_), false) => false,
            };
            if !is_same {
                self.answers(format!(
                    "cuts the gates of the first {CUTOFF_LAYERS} layers off at {CUTOFF:.4} deviations of a sample, and no others"
                ));
            }
        }
    }
}

fn near(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * b.abs()
}

fn shown(activation: Activation) -> String {
    match activation {
        Activation::Silu => "SiLU".to_owned(),
        Activation::GeluTanh => "GELU in its tanh form".to_owned(),
        Activation::Gelu => "GELU in its exact form".to_owned(),
        Activation::Relu => "ReLU".to_owned(),
        Activation::ReluSquared => "squared ReLU".to_owned(),
        Activation::ClampedGlu { alpha, limit } => {
            format!("a clamped GLU with slope {alpha} and limit {limit}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::families::FAMILIES;

    fn spec(name: &str) -> ModelSpec {
        let checkpoint = Checkpoint::open(&larql_testkit::parity_fixture(name)).unwrap();
        checkpoint.spec().clone()
    }

    fn attentions(spec: &mut ModelSpec, edit: impl Fn(&mut AttentionSpec)) {
        for layer in &mut spec.layers {
            if let Mixer::Attention(attention) = &mut layer.mixer {
                edit(attention);
            }
        }
    }

    fn moes(spec: &mut ModelSpec, edit: impl Fn(&mut MoeSpec)) {
        for layer in &mut spec.layers {
            if let Ffn::Moe(moe) = &mut layer.ffn {
                edit(moe);
            }
        }
    }

    #[test]
    fn every_architecture_is_in_the_table_once() {
        for family in FAMILIES {
            let mut rows = READERS.iter().filter(|(arch, _)| *arch == family.gguf_arch);
            assert!(rows.next().is_some(), "{}", family.gguf_arch);
            assert!(rows.next().is_none(), "{}", family.gguf_arch);
        }
    }

    #[test]
    fn models_that_llama_cpp_computes_as_they_are_get_no_sentence() {
        for name in [
            "arcee",
            "cohere2",
            "deepseek-v2",
            "deepseek-v3",
            "gemma",
            "gemma4-dense",
            "gemma4-e",
            "gemma4-moe",
            "glm4",
            "gpt2",
            "granite",
            "granitemoe",
            "llama",
            "llama-rope3",
            "llama-yarn",
            "mixtral",
            "olmo2",
            "phi",
            "phi3",
            "qwen2",
            "qwen2-moe",
            "qwen3",
            "smollm3",
            "stablelm",
        ] {
            assert_eq!(reads_otherwise(&spec(name)), [] as [&str; 0], "{name}");
        }
    }

    #[test]
    fn facts_without_a_word_are_said_once_for_all_layers() {
        let windowed = "llama.cpp ignores the window of 9 in this architecture: from position 9 on its answers differ";
        let scale = "llama.cpp multiplies scores by 0.204124 in this architecture, not by 0.158114";
        let ramp = "llama.cpp rounds the ends of YaRN's ramp to whole dimensions";
        let refused = |why: &str| format!("llama.cpp {why}, so it does not load this file");
        let cases = [
            ("mistral-sliding", windowed.to_owned()),
            ("starcoder2", windowed.to_owned()),
            ("gemma2", scale.to_owned()),
            ("gemma3", scale.to_owned()),
            ("gpt-oss", ramp.to_owned()),
            ("gpt-oss-mxfp4", ramp.to_owned()),
            ("qwen3-moe", refused("expects a router in every layer")),
            (
                "olmoe",
                refused("expects as many K/V heads as query heads in this architecture"),
            ),
            (
                "qwen3-next",
                refused("expects key and value heads of one width in linear layers"),
            ),
        ];
        for (name, sentence) in cases {
            assert_eq!(reads_otherwise(&spec(name)), [sentence], "{name}");
        }
        assert_eq!(
            reads_otherwise(&spec("kimi-linear")),
            [
                refused("expects as many heads in linear layers as in the others"),
                "llama.cpp adds 1e-5 where linear layers normalize queries and keys, not 1e-6"
                    .to_owned(),
            ]
        );
        let streams = reads_otherwise(&spec("gemma3n"));
        assert_eq!(streams[0], refused("has 4 parallel streams built in"));
        assert_eq!(streams.len(), 5, "{streams:?}");
    }

    #[test]
    fn the_largest_gemmas_take_the_scale_from_the_width_of_the_model() {
        let mut large = spec("gemma3");
        large.layers = large.layers.iter().cycle().take(62).cloned().collect();
        attentions(&mut large, |attention| {
            attention.scale = 14.0_f32.powf(-0.5)
        });
        assert_eq!(reads_otherwise(&large), [] as [&str; 0]);
        large.layers.pop();
        assert_eq!(reads_otherwise(&large).len(), 1);
    }

    #[test]
    fn routers_and_heads_are_compared_with_what_is_built_in() {
        let mut normalized = spec("qwen2-moe");
        moes(&mut normalized, |moe| moe.renormalize = Some(0.0));
        assert_eq!(
            reads_otherwise(&normalized),
            ["llama.cpp does not divide the weights of chosen experts by their sum"]
        );
        let mut raw = spec("mixtral");
        moes(&mut raw, |moe| {
            moe.renormalize = None;
            moe.score = RouterScore::Softmax;
        });
        assert_eq!(
            reads_otherwise(&raw),
            ["llama.cpp divides the weights of chosen experts by their sum"]
        );
        let mut grouped = spec("deepseek-v3");
        moes(&mut grouped, |moe| {
            moe.select = RouterSelect::Grouped {
                n_groups: 4,
                n_kept: 2,
                group_top: 1,
            };
        });
        assert_eq!(
            reads_otherwise(&grouped),
            ["llama.cpp ranks groups of experts by the sum of 2 scores, not of 1"]
        );
        let mut untied = spec("gemma");
        untied.head.tied = false;
        assert!(reads_otherwise(&untied)[0].contains("takes the embedding as head"));
        assert!(wants_head(&spec("olmo2")) && !wants_head(&spec("llama")));
    }

    #[test]
    fn rotation_is_compared_layer_by_layer() {
        let mut partial = spec("llama");
        attentions(&mut partial, |attention| {
            if let Some(rope) = &mut attention.rope {
                rope.dims = 12;
            }
        });
        assert_eq!(
            reads_otherwise(&partial),
            [
                "llama.cpp rotates whole heads of 24 in this architecture, not 12 dimensions, so it does not load this file"
            ]
        );
        let mut odd = spec("smollm3");
        odd.layers.swap(0, 3);
        assert_eq!(
            reads_otherwise(&odd),
            [
                "llama.cpp rotates queries and keys in layer 0 too",
                "llama.cpp rotates no queries and keys in layer 3"
            ]
        );
        let mut betas = spec("llama-yarn");
        attentions(&mut betas, |attention| {
            if let Some(RopeSpec {
                scaling: RopeScaling::Yarn { beta_fast, .. },
                ..
            }) = &mut attention.rope
            {
                *beta_fast = 16.0;
            }
        });
        assert_eq!(
            reads_otherwise(&betas),
            ["llama.cpp takes the ends of YaRN's ramp at 32 and 1 rotations, not at 16 and 1"]
        );
    }
}

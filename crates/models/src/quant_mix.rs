//! Which storage format each tensor of a checkpoint gets in llama.cpp's usual mixes.
//!
//! A name such as `q4_k_m` is a recipe: most matrices in one format, some layers of the sensitive
//! ones in a wider one, norms and routers as they are.  [`plan`] reproduces what llama.cpp's
//! quantizer decides without an importance matrix, tensor for tensor, so that the files of both
//! have the same formats.  It looks at names and shapes only; encoding is in `larql_kernels`.

use larql_kernels::Format;

#[cfg(test)]
mod tests;

/// A recipe for the formats of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mix {
    /// Every matrix in F32.
    F32,
    /// Every matrix in F16.
    F16,
    /// Every matrix in BF16.
    Bf16,
    /// Q8_0 throughout.
    Q8_0,
    /// Q4_0 with a Q6_K output matrix.
    Q4_0,
    /// Q4_1 with a Q6_K output matrix.
    Q4_1,
    /// Q5_0 with a Q6_K output matrix.
    Q5_0,
    /// Q5_1 with a Q6_K output matrix.
    Q5_1,
    /// Q2_K with Q3_K and Q4_K for the sensitive matrices.
    Q2K,
    /// Q3_K, small.
    Q3KS,
    /// Q3_K with Q4_K and Q5_K for the sensitive matrices.
    Q3KM,
    /// Q3_K with Q5_K for the sensitive matrices.
    Q3KL,
    /// Q4_K with Q5_K in the first layers.
    Q4KS,
    /// Q4_K with Q6_K in half of the sensitive matrices.
    Q4KM,
    /// Q5_K, small.
    Q5KS,
    /// Q5_K with Q6_K in half of the sensitive matrices.
    Q5KM,
    /// Q6_K throughout.
    Q6K,
}

impl Mix {
    /// Every mix, in declaration order.
    pub const ALL: &[Self] = &[
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3KS,
        Self::Q3KM,
        Self::Q3KL,
        Self::Q4KS,
        Self::Q4KM,
        Self::Q5KS,
        Self::Q5KM,
        Self::Q6K,
    ];

    /// The name that users type, for example `q4_k_m`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q2K => "q2_k",
            Self::Q3KS => "q3_k_s",
            Self::Q3KM => "q3_k_m",
            Self::Q3KL => "q3_k_l",
            Self::Q4KS => "q4_k_s",
            Self::Q4KM => "q4_k_m",
            Self::Q5KS => "q5_k_s",
            Self::Q5KM => "q5_k_m",
            Self::Q6K => "q6_k",
        }
    }

    /// The mix of a name in any case; `q3_k`, `q4_k` and `q5_k` are the medium mixes.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let full = match name.as_str() {
            "q3_k" | "q4_k" | "q5_k" => format!("{name}_m"),
            _ => name,
        };
        Self::ALL.iter().copied().find(|mix| mix.name() == full)
    }

    /// The value of `general.file_type` in a GGUF file of this mix.
    pub fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 7,
            Self::Q5_0 => 8,
            Self::Q5_1 => 9,
            Self::Q2K => 10,
            Self::Q3KS => 11,
            Self::Q3KM => 12,
            Self::Q3KL => 13,
            Self::Q4KS => 14,
            Self::Q4KM => 15,
            Self::Q5KS => 16,
            Self::Q5KM => 17,
            Self::Q6K => 18,
            Self::Bf16 => 32,
        }
    }

    /// The format of every tensor that no rule singles out.
    pub fn base_format(self) -> Format {
        match self {
            Self::F32 => Format::F32,
            Self::F16 => Format::F16,
            Self::Bf16 => Format::Bf16,
            Self::Q8_0 => Format::Q8_0,
            Self::Q4_0 => Format::Q4_0,
            Self::Q4_1 => Format::Q4_1,
            Self::Q5_0 => Format::Q5_0,
            Self::Q5_1 => Format::Q5_1,
            Self::Q2K => Format::Q2K,
            Self::Q3KS | Self::Q3KM | Self::Q3KL => Format::Q3K,
            Self::Q4KS | Self::Q4KM => Format::Q4K,
            Self::Q5KS | Self::Q5KM => Format::Q5K,
            Self::Q6K => Format::Q6K,
        }
    }
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What the rules look at beside the tensors, as GGUF metadata spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixFacts<'a> {
    /// `general.architecture`.
    pub architecture: &'a str,
    /// `ARCH.block_count`, next-token-prediction layers included.
    pub n_layers: u32,
    /// `ARCH.expert_count`; 0 for a dense model.
    pub n_experts: u32,
    /// Query heads of the first layer.
    pub n_heads: u32,
    /// Key/value heads of the first layer.
    pub n_kv_heads: u32,
}

/// A tensor of the file to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixTensor<'a> {
    /// Its GGUF name.
    pub name: &'a str,
    /// Number of rows; of all experts together for a stack of matrices, 1 for a vector.
    pub rows: u64,
    /// Weights in a row.
    pub cols: u64,
}

/// What becomes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MixChoice {
    /// It stays in the format it has.
    Keep,
    /// It is encoded.
    Encode {
        /// The format to encode into.
        format: Format,
        /// The format that the mix asks for, when a row is not a whole number of its blocks.
        fallback_from: Option<Format>,
    },
}

/// Why a mix cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MixError {
    /// The rules need the layer of an expert tensor and its name does not tell it.
    #[error(
        "tensor {tensor} names no layer below {n_layers}, which the mix of a model with experts needs"
    )]
    LayerUnknown {
        /// The GGUF name.
        tensor: String,
        /// Layers of the model.
        n_layers: u32,
    },
    /// The architecture has rules of its own that are not reproduced.
    #[error("no quantization mixes for the architecture {architecture}")]
    UnknownRules {
        /// `general.architecture`.
        architecture: String,
    },
}

/// Decides the format of every tensor; the choices are in the order of `tensors`.
///
/// All tensors of the file must be given: the rules count them.
///
/// # Errors
///
/// When the architecture is one whose own rules are not reproduced, or the layer of a tensor of a
/// model with experts is not in its name.
pub fn plan(
    mix: Mix,
    tensors: &[MixTensor<'_>],
    facts: &MixFacts<'_>,
) -> Result<Vec<MixChoice>, MixError> {
    if facts.architecture == GLM5_NEXT {
        let architecture = facts.architecture.to_owned();
        return Err(MixError::UnknownRules { architecture });
    }
    // Layers are counted in the order of their numbers, whatever the order in the file.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| (layer_of(tensors[i].name), tensors[i].name));
    let roles: Vec<Role> = tensors.iter().map(|t| Role::of(t.name)).collect();
    let mut planner = Planner {
        mix,
        facts,
        tied: !roles.contains(&Role::Output),
        n_attn_v: count(roles.iter().filter(|role| role.is_attn_v())),
        attn_v_idx: 0,
        mlp_down_idx: 0,
    };
    let mut choices = vec![MixChoice::Keep; tensors.len()];
    for i in order {
        let tensor = &tensors[i];
        if is_encoded(tensor) {
            choices[i] = planner.choose(tensor, roles[i])?;
        }
    }
    Ok(choices)
}

/// An architecture with a list of exceptions by tensor name that is not reproduced here.
const GLM5_NEXT: &str = "glm5-next";

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).expect("a file has fewer tensors than 2^32")
}

/// The layer that a name states; other tensors come first.
fn layer_of(name: &str) -> Option<u32> {
    let (layer, _) = name.strip_prefix("blk.")?.split_once('.')?;
    layer.parse().ok()
}

/// Parts of names of matrices that are small or sensitive and therefore kept.
const KEPT_PARTS: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// Names of matrices that are kept.
const KEPT_NAMES: &[&str] = &["position_embd.weight", "token_types.weight"];

/// Whether a mix touches the tensor at all.
fn is_encoded(tensor: &MixTensor<'_>) -> bool {
    let MixTensor { name, rows, .. } = *tensor;
    rows > 1
        && name.ends_with("weight")
        && !KEPT_NAMES.contains(&name)
        && !KEPT_PARTS.iter().any(|part| name.contains(part))
}

/// What the rules distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Output,
    TokenEmbedding,
    AttnQkv,
    AttnKvB,
    AttnV,
    AttnK,
    AttnOutput,
    MlpUp,
    MlpGate,
    MlpDown,
    Other,
}

impl Role {
    fn of(name: &str) -> Self {
        match name {
            "output.weight" => return Self::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => return Self::TokenEmbedding,
            _ => {}
        }
        let parts = [
            ("attn_qkv.weight", Self::AttnQkv),
            ("attn_kv_b.weight", Self::AttnKvB),
            ("attn_v.weight", Self::AttnV),
            ("attn_k.weight", Self::AttnK),
            ("attn_output.weight", Self::AttnOutput),
            ("ffn_up", Self::MlpUp),
            ("ffn_gate", Self::MlpGate),
            ("ffn_down", Self::MlpDown),
        ];
        let found = parts.into_iter().find(|(part, _)| name.contains(part));
        found.map_or(Self::Other, |(_, role)| role)
    }

    /// Whether the matrix makes values, alone or among others.
    fn is_attn_v(self) -> bool {
        match self {
            Self::AttnQkv | Self::AttnKvB | Self::AttnV => true,
            Self::Output
            | Self::TokenEmbedding
            | Self::AttnK
            | Self::AttnOutput
            | Self::MlpUp
            | Self::MlpGate
            | Self::MlpDown
            | Self::Other => false,
        }
    }
}

/// The rules and how far the tensors have been counted.
struct Planner<'a> {
    mix: Mix,
    facts: &'a MixFacts<'a>,
    tied: bool,
    n_attn_v: u32,
    attn_v_idx: u32,
    mlp_down_idx: u32,
}

impl Planner<'_> {
    fn choose(&mut self, tensor: &MixTensor<'_>, role: Role) -> Result<MixChoice, MixError> {
        let base = self.mix.base_format();
        let encode = |format, fallback_from| MixChoice::Encode {
            format,
            fallback_from,
        };
        if base.block_len() == 1 {
            return Ok(encode(base, None));
        }
        let wanted = match role {
            Role::Output => self.output(),
            Role::TokenEmbedding if self.tied => self.output(),
            Role::TokenEmbedding | Role::Other => base,
            Role::AttnQkv | Role::AttnKvB | Role::AttnV => self.attn_v(),
            Role::AttnK if self.facts.n_experts == 8 => Format::Q8_0,
            Role::AttnK => base,
            Role::AttnOutput => self.attn_output(),
            Role::MlpDown => self.mlp_down(tensor)?,
            Role::MlpUp | Role::MlpGate => {
                self.require_layer(tensor)?;
                base
            }
        };
        let format = fallback(wanted, tensor.cols);
        Ok(encode(format, (format != wanted).then_some(wanted)))
    }

    fn is_falcon(&self) -> bool {
        self.facts.architecture == "falcon"
    }

    /// The output matrix, which is the token embedding where that is shared.
    fn output(&self) -> Format {
        if self.mix == Mix::Q8_0 || self.is_falcon() {
            Format::Q8_0
        } else {
            Format::Q6K
        }
    }

    fn attn_v(&mut self) -> Format {
        let idx = self.attn_v_idx;
        self.attn_v_idx += 1;
        if self.facts.n_experts == 8 {
            return Format::Q8_0;
        }
        let base = self.mix.base_format();
        let format = match self.mix {
            Mix::Q2K if self.queries_per_kv_head() >= 4 => Format::Q4K,
            Mix::Q2K => Format::Q3K,
            Mix::Q3KM if idx < 2 => Format::Q5K,
            Mix::Q3KM => Format::Q4K,
            Mix::Q3KL => Format::Q5K,
            Mix::Q4KM | Mix::Q5KM if has_more_bits(idx, self.n_attn_v) => Format::Q6K,
            Mix::Q4KS if idx < 4 => Format::Q5K,
            Mix::Q4KM | Mix::Q5KM | Mix::Q4KS => base,
            Mix::F32 | Mix::F16 | Mix::Bf16 | Mix::Q8_0 | Mix::Q4_0 | Mix::Q4_1 => base,
            Mix::Q5_0 | Mix::Q5_1 | Mix::Q3KS | Mix::Q5KS | Mix::Q6K => base,
        };
        let narrow = format == Format::Q3K || format == Format::Q4K;
        if narrow && self.shares_values_widely() {
            Format::Q5K
        } else {
            format
        }
    }

    fn queries_per_kv_head(&self) -> u32 {
        self.facts
            .n_heads
            .checked_div(self.facts.n_kv_heads)
            .unwrap_or(0)
    }

    /// The models that llama.cpp classes as 70B: many queries read each value, so that the value
    /// matrix is small and worth more bits.
    fn shares_values_widely(&self) -> bool {
        let MixFacts {
            architecture,
            n_layers,
            n_experts: _,
            n_heads,
            n_kv_heads,
        } = *self.facts;
        match architecture {
            "llama" => n_layers == 80 && n_heads != n_kv_heads,
            "qwen2" | "deci" | "olmo" => n_layers == 80,
            "jais2" => n_layers == 68,
            _ => false,
        }
    }

    fn attn_output(&self) -> Format {
        let base = self.mix.base_format();
        if self.is_falcon() {
            return if self.mix == Mix::Q3KL {
                Format::Q4K
            } else {
                base
            };
        }
        let eight_experts = self.facts.n_experts == 8;
        match self.mix {
            Mix::Q2K | Mix::Q3KS | Mix::Q3KM | Mix::Q4KS | Mix::Q4KM if eight_experts => {
                Format::Q5K
            }
            Mix::Q2K => Format::Q3K,
            Mix::Q3KM => Format::Q4K,
            Mix::Q3KL if !eight_experts => Format::Q5K,
            Mix::Q3KS | Mix::Q3KL | Mix::Q4KS | Mix::Q4KM | Mix::Q5KS | Mix::Q5KM => base,
            Mix::F32 | Mix::F16 | Mix::Bf16 | Mix::Q8_0 | Mix::Q6K => base,
            Mix::Q4_0 | Mix::Q4_1 | Mix::Q5_0 | Mix::Q5_1 => base,
        }
    }

    fn mlp_down(&mut self, tensor: &MixTensor<'_>) -> Result<Format, MixError> {
        let n_layers = self.facts.n_layers;
        let layer = self.require_layer(tensor)?.unwrap_or(self.mlp_down_idx);
        self.mlp_down_idx += 1;
        let base = self.mix.base_format();
        let more_bits = has_more_bits(layer, n_layers);
        let falcon = self.is_falcon();
        Ok(match self.mix {
            Mix::Q2K => Format::Q3K,
            Mix::Q3KM if layer < n_layers / 16 => Format::Q5K,
            Mix::Q3KM if !falcon || more_bits => Format::Q4K,
            Mix::Q3KM => base,
            Mix::Q3KL if falcon => Format::Q4K,
            Mix::Q3KL => Format::Q5K,
            Mix::Q4KM if falcon && layer < n_layers / 16 => Format::Q6K,
            Mix::Q4KM if falcon && more_bits => Format::Q5K,
            Mix::Q4KM if falcon => base,
            Mix::Q4KM | Mix::Q5KM if more_bits => Format::Q6K,
            Mix::Q4KS if !falcon && layer < n_layers / 8 => Format::Q5K,
            Mix::Q3KS | Mix::Q4KS | Mix::Q4KM | Mix::Q5KS | Mix::Q5KM | Mix::Q6K => base,
            Mix::F32 | Mix::F16 | Mix::Bf16 | Mix::Q8_0 => base,
            Mix::Q4_0 | Mix::Q4_1 | Mix::Q5_0 | Mix::Q5_1 => base,
        })
    }

    /// The layer of a feed-forward matrix in a model with experts, whose matrices are not one per
    /// layer; `None` in the others, where counting tells it.
    fn require_layer(&self, tensor: &MixTensor<'_>) -> Result<Option<u32>, MixError> {
        let MixFacts {
            n_layers,
            n_experts,
            ..
        } = *self.facts;
        if n_experts <= 1 {
            return Ok(None);
        }
        match layer_of(tensor.name) {
            Some(layer) if layer < n_layers => Ok(Some(layer)),
            Some(_) | None => Err(MixError::LayerUnknown {
                tensor: tensor.name.to_owned(),
                n_layers,
            }),
        }
    }
}

/// Whether the layer is among the first and last eighth or a third of the others.
fn has_more_bits(layer: u32, n_layers: u32) -> bool {
    let first = n_layers / 8;
    layer < first || layer >= 7 * n_layers / 8 || (layer - first) % 3 == 2
}

/// `wanted`, or the nearest format whose blocks divide a row of `cols` weights.
fn fallback(wanted: Format, cols: u64) -> Format {
    let fits = |format: Format| cols.is_multiple_of(format.block_len() as u64);
    if fits(wanted) {
        return wanted;
    }
    let narrower = match wanted {
        Format::Q2K | Format::Q3K => Format::Q4_0,
        Format::Q4K => Format::Q5_0,
        Format::Q5K => Format::Q5_1,
        Format::Q6K => Format::Q8_0,
        Format::Iq4Xs => Format::Iq4Nl,
        Format::F32 | Format::F16 | Format::Bf16 => wanted,
        Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => wanted,
        Format::Iq4Nl | Format::Mxfp4 => wanted,
    };
    if fits(narrower) {
        narrower
    } else {
        Format::F16
    }
}

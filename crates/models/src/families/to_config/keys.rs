//! Keys in the making, the facts that many classes state alike, and numbers as a person would write them.

use serde_json::{Map, Value};

use super::rope::{self, Share};
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, Ffn, FfnSpec, LayerSpec, Mixer, ModelSpec, MoeSpec,
    RopeSpec,
};

/// Significant digits after the first that tell any two f64 apart.
const DIGITS_MAX: usize = 16;

/// What no configuration of the class says.
#[derive(Debug)]
pub(super) struct Unsayable(pub(super) String);

/// Keys of a configuration.
#[derive(Debug, Default)]
pub(super) struct Keys(Map<String, Value>);

impl Keys {
    pub(super) fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    /// A number with a fraction, in as few digits as say it.
    pub(super) fn number(&mut self, key: &str, value: impl Into<f64>) {
        self.put(key, decimal(value.into()));
    }

    /// A number with a fraction, or `null` where a class takes another one for granted.
    pub(super) fn number_or_null(&mut self, key: &str, value: Option<f32>) {
        self.put(key, value.map(|value| decimal(f64::from(value))));
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    pub(super) fn into_map(self) -> Map<String, Value> {
        self.0
    }
}

/// Where a class differs in how it spells what all have.
pub(super) struct Spelling {
    /// The epsilon of norms.
    pub(super) eps: &'static str,
    /// The activation.
    pub(super) activation: &'static str,
    /// Its approximation by tanh.
    pub(super) tanh: &'static str,
    /// Whether the class needs no width of a head that is an even share of the model's.
    pub(super) derives_head: bool,
    /// Whether part of a head may turn.
    pub(super) share: Share,
}

/// How most classes spell it.
pub(super) const USUAL: Spelling = Spelling {
    eps: "rms_norm_eps",
    activation: "hidden_act",
    tanh: "gelu_pytorch_tanh",
    derives_head: false,
    share: Share::Whole,
};

/// As [`USUAL`], in classes that know the width of a head without a key.
pub(super) const DERIVED: Spelling = Spelling {
    derives_head: true,
    ..USUAL
};

/// Sizes, norm, activation, rope and head of a decoder whose layers have one kind of softmax attention.
pub(super) fn common(spec: &ModelSpec, spelling: &Spelling) -> Result<Keys, Unsayable> {
    let attention = first_attention(spec)?;
    let mut keys = sizes(spec);
    keys.number(spelling.eps, spec.final_norm.eps);
    keys.put("num_attention_heads", attention.n_heads);
    keys.put("num_key_value_heads", attention.n_kv_heads);
    let derived = spec.d_model.checked_div(attention.n_heads);
    if !spelling.derives_head || derived != Some(attention.d_head) {
        keys.put("head_dim", attention.d_head);
    }
    if let Some(ffn) = any_ffn(spec) {
        let name = activation(ffn.activation, spelling.tanh)?;
        keys.put(spelling.activation, name);
    }
    if let Some(found) = any_rope(spec) {
        let params = rope::parameters(found, attention.d_head, spec.n_ctx, spelling.share)?;
        keys.put("rope_parameters", params.into_map());
    }
    Ok(keys)
}

/// Sizes that have no part in attention, and whether the head is the embedding.
pub(super) fn sizes(spec: &ModelSpec) -> Keys {
    let mut keys = Keys::default();
    keys.put("vocab_size", spec.d_vocab);
    keys.put("hidden_size", spec.d_model);
    keys.put("num_hidden_layers", spec.layers.len());
    keys.put("max_position_embeddings", spec.n_ctx);
    keys.put("tie_word_embeddings", spec.head.tied);
    // Classes want the width of dense layers of models that have none, too; that of an expert is as good as any.
    if let Some(ffn) = first_dense(spec).or_else(|| any_ffn(spec)) {
        keys.put("intermediate_size", ffn.d_mlp);
    }
    keys
}

/// The attention that keys for all layers describe.
pub(super) fn first_attention(spec: &ModelSpec) -> Result<&AttentionSpec, Unsayable> {
    softmax_layers(spec)
        .next()
        .ok_or_else(|| Unsayable("a model without a layer of softmax attention".to_owned()))
}

/// The softmax attention of each layer that has one.
pub(super) fn softmax_layers(spec: &ModelSpec) -> impl Iterator<Item = &AttentionSpec> {
    spec.layers.iter().filter_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Some(attention),
        Mixer::Mla(_) | Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    })
}

/// The rope of the first layer that has one.
pub(super) fn any_rope(spec: &ModelSpec) -> Option<&RopeSpec> {
    softmax_layers(spec).find_map(|attention| attention.rope.as_ref())
}

/// The router of a layer that has one.
pub(super) fn router_of(layer: &LayerSpec) -> Option<&MoeSpec> {
    match &layer.ffn {
        Ffn::Moe(moe) => Some(moe),
        Ffn::Gated(_) | Ffn::Plain(_) => None,
    }
}

/// The first router.
pub(super) fn first_router(spec: &ModelSpec) -> Result<&MoeSpec, Unsayable> {
    let mut routers = spec.layers.iter().filter_map(router_of);
    routers
        .next()
        .ok_or_else(|| Unsayable("a model without a layer of experts".to_owned()))
}

/// The first FFN that is not an expert.
fn first_dense(spec: &ModelSpec) -> Option<&FfnSpec> {
    spec.layers.iter().find_map(|layer| match &layer.ffn {
        Ffn::Gated(ffn) | Ffn::Plain(ffn) => Some(ffn),
        Ffn::Moe(moe) => moe.parallel_dense.as_ref().map(|dense| &dense.ffn),
    })
}

/// The first FFN, an expert where there is no other.
fn any_ffn(spec: &ModelSpec) -> Option<&FfnSpec> {
    first_dense(spec).or_else(|| {
        let mut routers = spec.layers.iter().filter_map(router_of);
        routers.next().map(|moe| &moe.expert)
    })
}

/// Whether dense FFNs have biases.
pub(super) fn mlp_bias(spec: &ModelSpec) -> bool {
    first_dense(spec).is_some_and(|ffn| ffn.bias)
}

/// Whether the attention has biases.
pub(super) fn has_bias(attention: &AttentionSpec) -> bool {
    match attention.bias {
        AttentionBias::Absent => false,
        AttentionBias::Qkv | AttentionBias::Qkvo => true,
    }
}

/// The window of the first layer that has one.
pub(super) fn any_window(spec: &ModelSpec) -> Option<u32> {
    softmax_layers(spec).find_map(|attention| attention.window)
}

/// `layer_types` of layers with and without a window.
pub(super) fn windowed_types(spec: &ModelSpec) -> Vec<&'static str> {
    softmax_layers(spec)
        .map(|attention| match attention.window {
            Some(_) => "sliding_attention",
            None => "full_attention",
        })
        .collect()
}

/// What transformers calls an activation; `tanh` is the class's word for the approximation by tanh.
pub(super) fn activation(
    activation: Activation,
    tanh: &'static str,
) -> Result<&'static str, Unsayable> {
    Ok(match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => tanh,
        Activation::Gelu => "gelu",
        Activation::Relu => "relu",
        Activation::ReluSquared => "relu2",
        Activation::ClampedGlu { .. } => {
            return Err(Unsayable("a gate that is clamped".to_owned()));
        }
    })
}

/// A number that was rounded to f32, in the fewest digits that say it; any other as it is.
pub(super) fn decimal(value: f64) -> f64 {
    let rounded = value as f32;
    if f64::from(rounded) == value {
        rounded.to_string().parse().unwrap_or(value)
    } else {
        value
    }
}

/// The number with the fewest digits near `value` that is read as what was meant; `value` itself if none is.
pub(super) fn simplest(value: f64, is_meant: impl Fn(f64) -> bool) -> f64 {
    let rounded = (0..=DIGITS_MAX).filter_map(|digits| format!("{value:.digits$e}").parse().ok());
    rounded
        .chain([value])
        .find(|candidate| is_meant(*candidate))
        .unwrap_or(value)
}

/// Equal up to a rounding to f32, since one of the two may have been divided by.
pub(super) fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= f64::from(f32::EPSILON) * a.abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_a_person_would() {
        assert_eq!(decimal(f64::from(1e-5_f32)).to_string(), "0.00001");
        assert_eq!(decimal(f64::from(0.22_f32)).to_string(), "0.22");
        assert_eq!(decimal(1.207_944_154_167_983_6), 1.207_944_154_167_983_6);
        let scale = 40_f64.powf(-0.5) as f32;
        let query = f64::from(scale).powi(-2);
        assert_ne!(query, 40.0);
        assert_eq!(simplest(query, |x| x.powf(-0.5) as f32 == scale), 40.0);
    }
}

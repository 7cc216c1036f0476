//! GPT-OSS: sinks beside the scores, windows on every other layer, and experts with a clamped gate, plain or in MXFP4.

use super::decoder::{
    GGUF_WINDOW_KEYS, Plain, Sizes, attentions, flagged_bias, gguf_bias, gguf_finish, gguf_missing,
    gguf_needed, gguf_needed_window, gguf_windows, layer_windows, rms, sizes_from_gguf,
    sizes_with_kv,
};
use super::moe::{self, MoeSizes};
use super::rope::{self, RopeClass};
use super::{Family, GgufFacts, GgufRopeRows, HfNames, names};
use crate::config::RawConfig;
use crate::error::ModelError;
use crate::layout::Rule;
use crate::roles::{ExpertTensor as E, LayerTensor as T};
use crate::rope::yarn_attention_factor;
use crate::spec::{
    Activation, AttentionBias, Ffn, ModelSpec, MoeSpec, RopeScaling, RopeSpec, RouterScore,
};

/// Slope and clamp of the gate where no key states them.
const ALPHA: f64 = 1.702;
const LIMIT: f64 = 7.0;

pub(super) const GPT_OSS: Family = Family {
    name: "gpt-oss",
    hf_model_types: &["gpt_oss"],
    gguf_arch: "gpt-oss",
    from_config,
    from_gguf: Some(from_gguf),
    gguf_rope_rows: GgufRopeRows::Canonical,
    hf: HfNames {
        prefixes: names::PREFIXES,
        layers: "layers.",
        rules: &[names::MODEL, names::PRE_NORMS, names::ATTENTION, RULES],
        ignored: &[],
    },
    gguf_rules: &[Rule::layer(&[T::FfnNorm], "post_attention_norm.weight")],
};

const RULES: &[Rule] = &[
    Rule::layer(&[T::Sinks], "self_attn.sinks"),
    Rule::layer(&[T::Router], "mlp.router.weight"),
    Rule::layer(&[T::RouterBias], "mlp.router.bias"),
    // Packed first: experts that are packed stay so.
    Rule::experts(&[E::Gate, E::Up], "mlp.experts.gate_up_proj_blocks")
        .alternating()
        .mxfp4_pairs("mlp.experts.gate_up_proj_scales"),
    Rule::experts(&[E::Gate, E::Up], "mlp.experts.gate_up_proj")
        .alternating()
        .columns(),
    Rule::experts(&[E::GateBias, E::UpBias], "mlp.experts.gate_up_proj_bias").alternating(),
    Rule::experts(&[E::Down], "mlp.experts.down_proj_blocks")
        .mxfp4_pairs("mlp.experts.down_proj_scales"),
    Rule::experts(&[E::Down], "mlp.experts.down_proj").columns(),
    Rule::experts(&[E::DownBias], "mlp.experts.down_proj_bias"),
];

/// The facts that the two readers find in different places.
struct Found {
    sizes: Sizes,
    eps: f32,
    bias: AttentionBias,
    rope: RopeSpec,
    windows: Vec<Option<u32>>,
    experts: MoeSizes,
    activation: Activation,
    tied: bool,
}

fn from_config(cfg: &RawConfig<'_>) -> Result<ModelSpec, ModelError> {
    quantization(cfg)?;
    // The experts' gate is fixed by the architecture; published files also state sizes under the trainer's names.
    cfg.must_be("hidden_act", &"silu".into())?;
    cfg.ignore("initial_context_length");
    let sizes = sizes_with_kv(cfg, Some(8), |_, _| 64)?;
    let window = Some(cfg.window("sliding_window", 128)?);
    let experts = MoeSizes::from_config(cfg, 128, 4, sizes.d_mlp)?;
    cfg.must_be("experts_per_token", &experts.n_active.into())?;
    let found = Found {
        sizes,
        eps: cfg.opt_positive("rms_norm_eps")?.unwrap_or(1e-5) as f32,
        bias: flagged_bias(cfg, "attention_bias", true, AttentionBias::Qkvo)?,
        rope: rope(cfg, sizes)?,
        windows: layer_windows(cfg, sizes.n_layers, window, |i| i % 2 == 0)?,
        experts,
        activation: Activation::ClampedGlu {
            alpha: cfg.opt_positive("swiglu_alpha")?.unwrap_or(ALPHA) as f32,
            limit: cfg.opt_positive("swiglu_limit")?.unwrap_or(LIMIT) as f32,
        },
        tied: cfg.bool_or("tie_word_embeddings", false)?,
    };
    cfg.finish()?;
    Ok(decoder(found))
}

/// The tensors themselves show which of them are in MXFP4; any other scheme is none we know.
fn quantization(cfg: &RawConfig<'_>) -> Result<(), ModelError> {
    let Some(quantization) = cfg.object("quantization_config")? else {
        return Ok(());
    };
    quantization.must_be("quant_method", &"mxfp4".into())?;
    quantization.ignore("modules_to_not_convert");
    quantization.finish()
}

/// A class without keys of RoPE is stretched all the same.
fn rope(cfg: &RawConfig<'_>, sizes: Sizes) -> Result<RopeSpec, ModelError> {
    let class = RopeClass {
        d_head: sizes.d_head,
        theta: 150_000.0,
        n_ctx: sizes.n_ctx,
    };
    let mut rope = rope::from_config(cfg, class)?;
    if rope::params(cfg)?.is_none() {
        let factor = 32.0;
        rope.scaling = RopeScaling::Yarn {
            factor,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: 4096,
            attention_factor: yarn_attention_factor(factor),
            truncate: false,
        };
    }
    Ok(rope)
}

fn from_gguf(facts: &GgufFacts<'_>) -> Result<ModelSpec, ModelError> {
    let arch = "gpt-oss";
    let sizes = sizes_from_gguf(facts, arch)?;
    let window = gguf_needed_window(facts, arch)?;
    let mut rope = rope::from_gguf(facts, arch, sizes.d_head, sizes.n_ctx)?;
    // No key says whether the ramp's ends are rounded; those of the published models are not.
    if let RopeScaling::Yarn { truncate, .. } = &mut rope.scaling {
        *truncate = false;
    }
    let found = Found {
        sizes,
        eps: gguf_needed(facts, arch, "attention.layer_norm_rms_epsilon")?,
        bias: gguf_bias(facts),
        rope,
        windows: gguf_windows(facts, arch, sizes.n_layers, Some(window), 2)?,
        experts: MoeSizes::ffns_from_gguf(facts, arch, sizes.d_mlp)?
            .ok_or_else(|| gguf_missing(facts, arch, "expert_count"))?,
        activation: Activation::ClampedGlu {
            alpha: ALPHA as f32,
            limit: LIMIT as f32,
        },
        tied: !facts.has_head(),
    };
    let mut known = rope::GGUF_KEYS.to_vec();
    known.extend(moe::GGUF_KEYS);
    known.extend(GGUF_WINDOW_KEYS);
    gguf_finish(facts, arch, &known)?;
    Ok(decoder(found))
}

fn decoder(found: Found) -> ModelSpec {
    let mut router = MoeSpec {
        router_bias: true,
        ..found
            .experts
            .router(RouterScore::SoftmaxOfChosen, found.activation)
    };
    router.expert.bias = true;
    let mut spec = Plain {
        family: "gpt-oss",
        sizes: found.sizes,
        norm: rms(found.eps),
        attention_bias: found.bias,
        mlp_bias: true,
        activation: found.activation,
        rope: Some(found.rope),
        tied: found.tied,
    }
    .into_spec();
    for (i, attention) in attentions(&mut spec) {
        attention.window = found.windows[i];
        attention.sinks = true;
    }
    spec.layers
        .iter_mut()
        .for_each(|layer| layer.ffn = Ffn::Moe(router.clone()));
    spec
}

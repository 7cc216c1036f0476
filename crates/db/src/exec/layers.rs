//! `SHOW LAYERS`: what each layer is made of, from the spec and the headers.

use std::ops::RangeInclusive;

use larql_models::StoredTensor;
use larql_models::roles::{ExpertTensor, LayerTensor, TensorRole};
use larql_models::spec::{Activation, Ffn, FfnSpec, Mixer, RopeScaling, RopeSpec};

use super::stats::count;
use crate::database::Database;
use crate::error::DbError;
use crate::features::tensors;
use crate::rows::{Cell, Rows};

const COLUMNS: [&str; 22] = [
    "layer",
    "attention",
    "heads",
    "kv_heads",
    "d_head",
    "features",
    "ffn",
    "experts",
    "experts_per_token",
    "d_expert",
    "d_shared",
    "activation",
    "rope_theta",
    "rope_scaling",
    "gate",
    "up",
    "down",
    "q",
    "k",
    "v",
    "o",
    "bytes",
];

/// What the columns from `gate` to `o` may be called in a layer; of experts, the first speaks for all.
fn matrices(layer: u32) -> [Vec<TensorRole>; 7] {
    let own = |tensor| TensorRole::Layer(layer, tensor);
    let expert = |tensor| TensorRole::Expert(layer, 0, tensor);
    [
        vec![own(LayerTensor::Gate), expert(ExpertTensor::Gate)],
        vec![own(LayerTensor::Up), expert(ExpertTensor::Up)],
        vec![own(LayerTensor::Down), expert(ExpertTensor::Down)],
        vec![own(LayerTensor::Q), own(LayerTensor::QB)],
        vec![own(LayerTensor::K), own(LayerTensor::KvB)],
        vec![own(LayerTensor::V), own(LayerTensor::KvB)],
        vec![own(LayerTensor::O)],
    ]
}

pub(super) fn rows(db: &Database, layers: RangeInclusive<usize>) -> Result<Rows, DbError> {
    let spec = db.spec();
    let tensors = tensors(db)?;
    let mut rows = Rows::new(&COLUMNS);
    for idx in layers {
        let Some(layer) = spec.layers.get(idx) else {
            continue;
        };
        let number = u32::try_from(idx).expect("layer counts are u32");
        let MixerFacts {
            kind,
            heads,
            kv_heads,
            d_head,
            rope_theta,
            rope_scaling,
        } = mixer_facts(&layer.mixer);
        let mut row: Vec<Cell> = vec![
            idx.into(),
            kind.into(),
            heads.into(),
            kv_heads.into(),
            d_head.into(),
            spec.n_features(idx).map(count).unwrap_or(Cell::Null),
        ];
        row.extend(ffn_cells(&layer.ffn));
        row.extend([
            activation(&layer.ffn).into(),
            rope_theta.into(),
            rope_scaling.into(),
        ]);
        let of_layer = |tensor: &&StoredTensor| match tensor.role {
            TensorRole::Layer(of, _) | TensorRole::Expert(of, _, _) => of == number,
            TensorRole::TokenEmbedding
            | TensorRole::PositionEmbedding
            | TensorRole::PerLayerEmbedding
            | TensorRole::PerLayerProjection
            | TensorRole::PerLayerProjectionNorm
            | TensorRole::AltUpProjection(_)
            | TensorRole::AltUpUnembedding(_)
            | TensorRole::FinalNorm
            | TensorRole::FinalNormBias
            | TensorRole::Head
            | TensorRole::HeadBias => false,
        };
        let own: Vec<&StoredTensor> = tensors.iter().filter(of_layer).collect();
        for roles in matrices(number) {
            let found = own.iter().find(|tensor| roles.contains(&tensor.role));
            row.push(found.map(|tensor| tensor.format.name()).into());
        }
        let n_bytes = own.iter().map(|tensor| tensor.bytes.len() as u64).sum();
        row.push(count(n_bytes));
        rows.push(row);
    }
    Ok(rows)
}

/// What the columns about a mixer say.
pub(super) struct MixerFacts {
    /// `full`, `window N`, `latent`, `kda` or `gated delta`.
    pub(super) kind: String,
    pub(super) heads: u32,
    /// Heads of keys; latent attention makes a key for every query head.
    pub(super) kv_heads: u32,
    /// Width of a key.
    pub(super) d_head: u32,
    rope_theta: Option<f64>,
    rope_scaling: Option<String>,
}

pub(super) fn mixer_facts(mixer: &Mixer) -> MixerFacts {
    let recurrent = |kind: &str, heads: u32, kv_heads: u32, d_head: u32| MixerFacts {
        kind: kind.to_owned(),
        heads,
        kv_heads,
        d_head,
        rope_theta: None,
        rope_scaling: None,
    };
    let scaling = |rope: Option<&RopeSpec>| rope.and_then(|rope| scaling_name(&rope.scaling));
    match mixer {
        Mixer::Attention(spec) => MixerFacts {
            kind: spec
                .window
                .map_or("full".to_owned(), |window| format!("window {window}")),
            heads: spec.n_heads,
            kv_heads: spec.n_kv_heads,
            d_head: spec.d_head,
            rope_theta: spec.rope.as_ref().map(|rope| rope.theta),
            rope_scaling: scaling(spec.rope.as_ref()),
        },
        Mixer::Mla(mla) => MixerFacts {
            kind: "latent".to_owned(),
            heads: mla.n_heads,
            kv_heads: mla.n_heads,
            d_head: mla.d_nope + mla.d_rope,
            rope_theta: mla.rope.as_ref().map(|rope| rope.theta),
            rope_scaling: scaling(mla.rope.as_ref()),
        },
        Mixer::Kda(kda) => recurrent("kda", kda.n_heads, kda.n_heads, kda.d_head),
        Mixer::GatedDelta(delta) => recurrent(
            "gated delta",
            delta.n_value_heads,
            delta.n_key_heads,
            delta.d_key,
        ),
    }
}

/// `ffn`, `experts`, `experts_per_token`, `d_expert`, `d_shared`.
fn ffn_cells(ffn: &Ffn) -> [Cell; 5] {
    match ffn {
        Ffn::Gated(_) | Ffn::Plain(_) => [
            "dense".into(),
            Cell::Null,
            Cell::Null,
            Cell::Null,
            Cell::Null,
        ],
        Ffn::Moe(moe) => {
            let kind = match &moe.parallel_dense {
                None => "mixture",
                Some(_) => "mixture beside dense",
            };
            [
                kind.into(),
                moe.n_experts.into(),
                moe.n_active.into(),
                moe.expert.d_mlp.into(),
                moe.shared.as_ref().map(|shared| shared.ffn.d_mlp).into(),
            ]
        }
    }
}

fn scaling_name(scaling: &RopeScaling) -> Option<String> {
    match scaling {
        RopeScaling::Unscaled => None,
        RopeScaling::Linear { factor } => Some(format!("linear {factor}")),
        RopeScaling::Llama3 { factor, .. } => Some(format!("llama3 {factor}")),
        RopeScaling::Yarn { factor, .. } => Some(format!("yarn {factor}")),
        RopeScaling::Divisors { divisors } => Some(format!("{} divisors", divisors.len())),
        RopeScaling::LongRope { .. } => Some("longrope".to_owned()),
        RopeScaling::Proportional { live_pairs } => Some(format!("proportional {live_pairs}")),
    }
}

fn activation(ffn: &Ffn) -> String {
    let name = |FfnSpec { activation, .. }: &FfnSpec| activation_name(*activation);
    match ffn {
        Ffn::Gated(spec) => format!("{}, gated", name(spec)),
        Ffn::Plain(spec) => name(spec).to_owned(),
        Ffn::Moe(moe) if ffn.is_gated() => format!("{}, gated", name(&moe.expert)),
        Ffn::Moe(moe) => name(&moe.expert).to_owned(),
    }
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::Gelu => "gelu",
        Activation::Relu => "relu",
        Activation::ReluSquared => "relu_squared",
        Activation::ClampedGlu { .. } => "clamped_glu",
    }
}

//! `SHOW LAYERS`: what each layer is made of, from the spec and the headers.

use std::ops::RangeInclusive;

use larql_models::StoredTensor;
use larql_models::roles::{ExpertTensor, LayerTensor, TensorRole};
use larql_models::spec::{Activation, AttentionSpec, Ffn, FfnSpec, Mixer, RopeScaling};

use super::stats::count;
use crate::database::Database;
use crate::error::DbError;
use crate::features::tensors;
use crate::rows::{Cell, Rows};

const COLUMNS: [&str; 17] = [
    "layer",
    "attention",
    "heads",
    "kv_heads",
    "d_head",
    "features",
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
        let mut row: Vec<Cell> = vec![idx.into()];
        row.extend(mixer_cells(&layer.mixer));
        row.insert(5, spec.n_features(idx).map(count).unwrap_or(Cell::Null));
        row.insert(6, activation(&layer.ffn).into());
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

/// `attention`, `heads`, `kv_heads`, `d_head`, `rope_theta`, `rope_scaling`.
fn mixer_cells(mixer: &Mixer) -> Vec<Cell> {
    let recurrent = |name: &str, heads: u32, key_heads: u32, d_key: u32| {
        vec![
            name.into(),
            heads.into(),
            key_heads.into(),
            d_key.into(),
            Cell::Null,
            Cell::Null,
        ]
    };
    match mixer {
        Mixer::Attention(spec) => attention_cells(spec),
        Mixer::Mla(mla) => vec![
            "latent".into(),
            mla.n_heads.into(),
            mla.n_heads.into(),
            (mla.d_nope + mla.d_rope).into(),
            mla.rope.as_ref().map(|rope| rope.theta).into(),
            mla.rope
                .as_ref()
                .and_then(|rope| scaling_name(&rope.scaling))
                .into(),
        ],
        Mixer::Kda(kda) => recurrent("kda", kda.n_heads, kda.n_heads, kda.d_head),
        Mixer::GatedDelta(delta) => recurrent(
            "gated delta",
            delta.n_value_heads,
            delta.n_key_heads,
            delta.d_key,
        ),
    }
}

fn attention_cells(spec: &AttentionSpec) -> Vec<Cell> {
    let kind = spec
        .window
        .map_or("full".to_owned(), |window| format!("window {window}"));
    let scaling = spec
        .rope
        .as_ref()
        .and_then(|rope| scaling_name(&rope.scaling));
    vec![
        kind.into(),
        spec.n_heads.into(),
        spec.n_kv_heads.into(),
        spec.d_head.into(),
        spec.rope.as_ref().map(|rope| rope.theta).into(),
        scaling.into(),
    ]
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
        Ffn::Moe(moe) => format!("{}, {} experts", name(&moe.expert), moe.n_experts),
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

//! `SHOW LAYERS`: what each layer is made of, from the spec and the headers.

use std::ops::RangeInclusive;

use larql_models::StoredTensor;
use larql_models::roles::{ExpertTensor, LayerTensor, TensorRole};
use larql_models::spec::{Activation, Ffn, FfnSpec};

use crate::database::Database;
use crate::error::DbError;
use crate::facts::{MixerFacts, count, expert_groups, mixer_facts};
use crate::features::tensors;
use crate::rows::{Cell, Rows};

const COLUMNS: [&str; 29] = [
    "layer",
    "attention",
    "heads",
    "kv_heads",
    "key_heads",
    "value_heads",
    "d_head",
    "d_value",
    "q_rank",
    "kv_rank",
    "features",
    "ffn",
    "experts",
    "experts_per_token",
    "d_expert",
    "d_shared",
    "expert_groups",
    "groups_kept",
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

/// Columns of facts that few models have: they are shown where some layer of the model has the fact.
const OPTIONAL: [&str; 6] = [
    "key_heads",
    "value_heads",
    "q_rank",
    "kv_rank",
    "expert_groups",
    "groups_kept",
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
    // Every layer is looked at, so that the columns do not depend on the range.
    for (idx, layer) in spec.layers.iter().enumerate() {
        let number = u32::try_from(idx).expect("layer counts are u32");
        let mut row: Vec<Cell> = vec![idx.into()];
        let mixer = mixer_facts(&layer.mixer);
        let [rope_theta, rope_scaling] =
            [mixer.rope_theta.into(), mixer.rope_scaling.clone().into()];
        row.extend(mixer_cells(mixer));
        row.push(spec.n_features(idx).map(count).unwrap_or(Cell::Null));
        row.extend(ffn_cells(&layer.ffn));
        row.extend([activation(&layer.ffn).into(), rope_theta, rope_scaling]);
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
    drop_absent(&mut rows);
    let mut idx = 0..;
    rows.rows
        .retain(|_| idx.next().is_some_and(|idx| layers.contains(&idx)));
    Ok(rows)
}

/// Takes away the optional columns that no row fills.
fn drop_absent(rows: &mut Rows) {
    for name in OPTIONAL {
        let Some(at) = rows.columns.iter().position(|column| column == name) else {
            continue;
        };
        if rows.rows.iter().all(|row| row[at] == Cell::Null) {
            rows.columns.remove(at);
            rows.rows.iter_mut().for_each(|row| {
                row.remove(at);
            });
        }
    }
}

/// `attention` to `kv_rank`.
fn mixer_cells(facts: MixerFacts) -> [Cell; 9] {
    let MixerFacts {
        kind,
        heads,
        kv_heads,
        key_heads,
        value_heads,
        d_head,
        d_value,
        q_rank,
        kv_rank,
        rope_theta: _,
        rope_scaling: _,
    } = facts;
    [
        kind.into(),
        heads.into(),
        kv_heads.into(),
        key_heads.into(),
        value_heads.into(),
        d_head.into(),
        d_value.into(),
        q_rank.into(),
        kv_rank.into(),
    ]
}

/// `ffn` to `groups_kept`.
fn ffn_cells(ffn: &Ffn) -> [Cell; 7] {
    match ffn {
        Ffn::Gated(_) | Ffn::Plain(_) => [
            "dense".into(),
            Cell::Null,
            Cell::Null,
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
            let groups = expert_groups(moe);
            [
                kind.into(),
                moe.n_experts.into(),
                moe.n_active.into(),
                moe.expert.d_mlp.into(),
                moe.shared.as_ref().map(|shared| shared.ffn.d_mlp).into(),
                groups.map(|(n_groups, _)| n_groups).into(),
                groups.map(|(_, n_kept)| n_kept).into(),
            ]
        }
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

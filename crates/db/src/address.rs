//! Where a feature lies in its layer: which FFN it belongs to, and its number there.
//!
//! A layer numbers all its features through, whatever FFN they belong to; that number is what tables and caches use. Where
//! a layer has experts it says little to a reader, so every answer also gives the expert and the neuron.

use larql_models::ModelSpec;
use larql_models::spec::{Ffn, FfnPart};

use crate::rows::Cell;

/// A feature's place in its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureAddress {
    /// The FFN it belongs to.
    pub part: FfnPart,
    /// Its number there.
    pub neuron: u32,
}

/// Where feature `feature` of a layer with this FFN lies; `None` if there is no such feature. Costs the same for any number
/// of experts.
pub fn address_of(ffn: &Ffn, feature: u32) -> Option<FeatureAddress> {
    let within = |part, neuron: u64, d_mlp: u32| {
        let neuron = u32::try_from(neuron).ok()?;
        (neuron < d_mlp).then_some(FeatureAddress { part, neuron })
    };
    let feature = u64::from(feature);
    let moe = match ffn {
        Ffn::Gated(dense) | Ffn::Plain(dense) => {
            return within(FfnPart::Dense, feature, dense.d_mlp);
        }
        Ffn::Moe(moe) => moe,
    };
    let d_expert = u64::from(moe.expert.d_mlp);
    let n_routed = u64::from(moe.n_experts) * d_expert;
    if feature < n_routed {
        let expert = u32::try_from(feature / d_expert).expect("experts are counted in u32");
        return within(
            FfnPart::Expert(expert),
            feature % d_expert,
            moe.expert.d_mlp,
        );
    }
    let d_shared = moe.shared.as_ref().map_or(0, |shared| shared.ffn.d_mlp);
    let after = feature - n_routed;
    if after < u64::from(d_shared) {
        return within(FfnPart::Shared, after, d_shared);
    }
    let d_dense = moe
        .parallel_dense
        .as_ref()
        .map_or(0, |dense| dense.ffn.d_mlp);
    within(FfnPart::Dense, after - u64::from(d_shared), d_dense)
}

impl FeatureAddress {
    /// The values of the columns `ffn`, `expert` and `neuron`.
    pub(crate) fn cells(self) -> [Cell; 3] {
        [
            part_word(self.part).into(),
            expert_number(self.part).into(),
            self.neuron.into(),
        ]
    }
}

/// Those values for a feature of a layer.
pub(crate) fn address_cells(ffn: &Ffn, feature: u32) -> [Cell; 3] {
    address_of(ffn, feature).map_or([Cell::Null, Cell::Null, Cell::Null], FeatureAddress::cells)
}

/// Which FFN of a layer, in the column `ffn`.
pub(crate) fn part_word(part: FfnPart) -> &'static str {
    match part {
        FfnPart::Dense => "dense",
        FfnPart::Expert(_) => "expert",
        FfnPart::Shared => "shared",
    }
}

/// The number of a routed expert.
pub(crate) fn expert_number(part: FfnPart) -> Option<u32> {
    match part {
        FfnPart::Expert(expert) => Some(expert),
        FfnPart::Dense | FfnPart::Shared => None,
    }
}

/// Whether some layer has experts.
pub(crate) fn has_experts(spec: &ModelSpec) -> bool {
    spec.layers.iter().any(|layer| is_mixture(&layer.ffn))
}

/// Whether a layer has experts.
pub(crate) fn is_mixture(ffn: &Ffn) -> bool {
    match ffn {
        Ffn::Gated(_) | Ffn::Plain(_) => false,
        Ffn::Moe(_) => true,
    }
}

/// A feature in few letters: `F12` where the layer has one FFN, else `E3/N12`, `shared/N12` or `dense/N12`.
pub(crate) fn feature_label(ffn: &Ffn, feature: u32) -> String {
    match address_of(ffn, feature) {
        Some(FeatureAddress { part, neuron }) if is_mixture(ffn) => match part {
            FfnPart::Expert(expert) => format!("E{expert}/N{neuron}"),
            FfnPart::Shared | FfnPart::Dense => format!("{}/N{neuron}", part_word(part)),
        },
        Some(_) | None => format!("F{feature}"),
    }
}

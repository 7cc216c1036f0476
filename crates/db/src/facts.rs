//! What a model consists of, from its spec alone: one name and one value per fact.
//!
//! `STATS` and the command line's `show` list the same facts, so they have the same names in both. Where layers differ, a
//! value has each of their numbers. A fact that no layer has is not listed.

use larql_models::ModelSpec;
use larql_models::spec::{Ffn, Mixer, MoeSpec, RopeScaling, RopeSpec, RouterSelect};

use crate::rows::Cell;

/// The facts, in the order in which they are read.
pub fn facts(spec: &ModelSpec) -> Vec<(&'static str, Cell)> {
    let mut facts: Vec<(&'static str, Cell)> = vec![
        ("layers", spec.n_layers().into()),
        ("d_model", spec.d_model.into()),
    ];
    facts.extend(ffn_facts(spec));
    facts.extend(mixers(spec));
    let n_features = (0..spec.n_layers()).filter_map(|layer| spec.n_features(layer));
    facts.extend([
        ("d_vocab", spec.d_vocab.into()),
        ("n_ctx", spec.n_ctx.into()),
        ("features", count(n_features.sum())),
    ]);
    facts
}

/// What is said about a mixer; a number that its kind does not have is absent.
pub(crate) struct MixerFacts {
    /// `full`, `window N`, `latent`, `kda` or `gated delta`.
    pub(crate) kind: String,
    /// Query heads.
    pub(crate) heads: Option<u32>,
    /// Heads of keys and values; latent attention makes a key for every query head.
    pub(crate) kv_heads: Option<u32>,
    /// Heads of keys and queries where values have others.
    pub(crate) key_heads: Option<u32>,
    /// Heads of values where keys have others.
    pub(crate) value_heads: Option<u32>,
    /// Width of a key.
    pub(crate) d_head: u32,
    /// Width of a value.
    pub(crate) d_value: u32,
    /// Rank of the query latent.
    pub(crate) q_rank: Option<u32>,
    /// Rank of the latent that keys and values are made of.
    pub(crate) kv_rank: Option<u32>,
    pub(crate) rope_theta: Option<f64>,
    pub(crate) rope_scaling: Option<String>,
}

/// What is said about a mixer.
pub(crate) fn mixer_facts(mixer: &Mixer) -> MixerFacts {
    let plain = |kind: String, heads: Option<u32>, d_head: u32, d_value: u32| MixerFacts {
        kind,
        heads,
        kv_heads: heads,
        key_heads: None,
        value_heads: None,
        d_head,
        d_value,
        q_rank: None,
        kv_rank: None,
        rope_theta: None,
        rope_scaling: None,
    };
    let scaling = |rope: Option<&RopeSpec>| rope.and_then(|rope| scaling_name(&rope.scaling));
    match mixer {
        Mixer::Attention(spec) => {
            let kind = spec
                .window
                .map_or("full".to_owned(), |window| format!("window {window}"));
            MixerFacts {
                kv_heads: Some(spec.n_kv_heads),
                rope_theta: spec.rope.as_ref().map(|rope| rope.theta),
                rope_scaling: scaling(spec.rope.as_ref()),
                ..plain(kind, Some(spec.n_heads), spec.d_head, spec.d_head)
            }
        }
        Mixer::Mla(mla) => MixerFacts {
            q_rank: mla.q_rank,
            kv_rank: Some(mla.kv_rank),
            rope_theta: mla.rope.as_ref().map(|rope| rope.theta),
            rope_scaling: scaling(mla.rope.as_ref()),
            ..plain(
                "latent".to_owned(),
                Some(mla.n_heads),
                mla.d_nope + mla.d_rope,
                mla.d_value,
            )
        },
        Mixer::Kda(kda) => plain("kda".to_owned(), Some(kda.n_heads), kda.d_head, kda.d_head),
        Mixer::GatedDelta(delta) => MixerFacts {
            key_heads: Some(delta.n_key_heads),
            value_heads: Some(delta.n_value_heads),
            ..plain("gated delta".to_owned(), None, delta.d_key, delta.d_value)
        },
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

/// Groups of experts, and those of them that experts are chosen from.
pub(crate) fn expert_groups(moe: &MoeSpec) -> Option<(u32, u32)> {
    match moe.select {
        RouterSelect::TopK => None,
        RouterSelect::Grouped {
            n_groups,
            n_kept,
            group_top: _,
        } => Some((n_groups, n_kept)),
    }
}

/// Widths of the FFNs; those of experts only where there are some.
fn ffn_facts(spec: &ModelSpec) -> Vec<(&'static str, Cell)> {
    let dense = spec.layers.iter().map(|layer| match &layer.ffn {
        Ffn::Gated(ffn) | Ffn::Plain(ffn) => Some(ffn.d_mlp),
        Ffn::Moe(moe) => moe.parallel_dense.as_ref().map(|dense| dense.ffn.d_mlp),
    });
    let mut facts = vec![("d_mlp", distinct(dense))];
    let mixtures: Vec<Option<&MoeSpec>> = spec
        .layers
        .iter()
        .map(|layer| match &layer.ffn {
            Ffn::Gated(_) | Ffn::Plain(_) => None,
            Ffn::Moe(moe) => Some(moe),
        })
        .collect();
    let n_dense = mixtures.iter().filter(|moe| moe.is_none()).count();
    if n_dense == mixtures.len() {
        return facts;
    }
    let of =
        |fact: fn(&MoeSpec) -> Option<u32>| distinct(mixtures.iter().map(|moe| moe.and_then(fact)));
    facts.extend([
        ("dense_layers", n_dense.into()),
        ("experts", of(|moe| Some(moe.n_experts))),
        ("experts_per_token", of(|moe| Some(moe.n_active))),
        ("d_expert", of(|moe| Some(moe.expert.d_mlp))),
        (
            "d_shared",
            of(|moe| moe.shared.as_ref().map(|shared| shared.ffn.d_mlp)),
        ),
    ]);
    let groups = [
        (
            "expert_groups",
            of(|moe| expert_groups(moe).map(|groups| groups.0)),
        ),
        (
            "groups_kept",
            of(|moe| expert_groups(moe).map(|groups| groups.1)),
        ),
    ];
    facts.extend(groups.into_iter().filter(|(_, value)| *value != Cell::Null));
    facts
}

/// Kinds of mixers with their numbers of layers, and their heads, widths and ranks.
fn mixers(spec: &ModelSpec) -> Vec<(&'static str, Cell)> {
    let facts: Vec<MixerFacts> = spec
        .layers
        .iter()
        .map(|layer| mixer_facts(&layer.mixer))
        .collect();
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for fact in &facts {
        match kinds.iter_mut().find(|(kind, _)| *kind == fact.kind) {
            Some((_, n)) => *n += 1,
            None => kinds.push((&fact.kind, 1)),
        }
    }
    let kinds: Vec<String> = match kinds.as_slice() {
        [(only, _)] => vec![(*only).to_owned()],
        several => several
            .iter()
            .map(|(kind, n)| format!("{kind} in {n}"))
            .collect(),
    };
    let of = |fact: fn(&MixerFacts) -> Option<u32>| distinct(facts.iter().map(fact));
    let mut all = vec![("attention", kinds.join(", ").into())];
    let numbers = [
        ("heads", of(|facts| facts.heads)),
        ("kv_heads", of(|facts| facts.kv_heads)),
        ("key_heads", of(|facts| facts.key_heads)),
        ("value_heads", of(|facts| facts.value_heads)),
        ("d_head", of(|facts| Some(facts.d_head))),
        ("d_value", of(|facts| Some(facts.d_value))),
        ("q_rank", of(|facts| facts.q_rank)),
        ("kv_rank", of(|facts| facts.kv_rank)),
    ];
    all.extend(
        numbers
            .into_iter()
            .filter(|(_, value)| *value != Cell::Null),
    );
    all
}

/// A count that can be large.
pub(crate) fn count(n: u64) -> Cell {
    Cell::Integer(i64::try_from(n).expect("sizes of files that exist fit i64"))
}

/// One number, or the different ones that the layers have, ascending.
fn distinct(values: impl Iterator<Item = Option<u32>>) -> Cell {
    let mut kinds: Vec<u32> = values.flatten().collect();
    kinds.sort_unstable();
    kinds.dedup();
    match kinds.as_slice() {
        [] => Cell::Null,
        [one] => (*one).into(),
        [_, _, ..] => kinds
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ")
            .into(),
    }
}

//! Keys that are written only where the reader of the file would otherwise believe something else.
//!
//! A fact names its key, the values that may say it (architectures differ: some divide by what others multiply with), and
//! how to tell that a reader has understood. The reader itself decides which of them a file needs.

use larql_formats::gguf::{Array, Metadata, Value};

use super::moe::router;
use super::{Keys, attention, global_rope, ropes};
use crate::error::ModelError;
use crate::spec::{ModelSpec, RouterScore};

/// Something a file may have to say.
struct Fact {
    key: &'static str,
    /// The values to try, in order.
    values: fn(&ModelSpec) -> Vec<Value>,
    /// Whether two specs agree about it.
    agrees: fn(&ModelSpec, &ModelSpec) -> bool,
    /// Whether silence says it to a reader that knows no such key.
    is_plain: fn(&ModelSpec) -> bool,
}

const FACTS: &[Fact] = &[
    Fact {
        key: "rope.freq_base_swa",
        values: |spec| float(windowed_theta(spec)),
        agrees: |a, b| windowed_theta(a) == windowed_theta(b),
        is_plain: |spec| {
            let global = global_rope(spec).map(|rope| rope.theta as f32);
            windowed_theta(spec).is_none_or(|theta| Some(theta) == global)
        },
    },
    Fact {
        key: "attention.scale",
        values: |spec| float(scale(spec)),
        agrees: |a, b| scale(a) == scale(b),
        is_plain: |spec| {
            let attn = spec.layers.iter().find_map(attention);
            attn.is_none_or(|attn| attn.scale == f64::from(attn.d_head).powf(-0.5) as f32)
        },
    },
    Fact {
        key: "attention.sliding_window_pattern",
        values: patterns,
        agrees: |a, b| windows(a) == windows(b),
        is_plain: |spec| period(&windows(spec)).is_none(),
    },
    Fact {
        key: "attention.clamp_kqv",
        values: |spec| float(clip(spec)),
        agrees: |a, b| clip(a) == clip(b),
        is_plain: |spec| clip(spec).is_none(),
    },
    Fact {
        key: "embedding_scale",
        values: |spec| float(Some(spec.embedding.multiplier)),
        agrees: |a, b| is_near(a.embedding.multiplier, b.embedding.multiplier),
        is_plain: |spec| spec.embedding.multiplier == 1.0,
    },
    Fact {
        key: "residual_scale",
        values: |spec| float(branches(spec)),
        agrees: |a, b| branches(a) == branches(b),
        is_plain: |spec| branches(spec) == Some(1.0),
    },
    Fact {
        key: "logit_scale",
        values: |spec| {
            let scale = spec.head.scale;
            [float(Some(scale)), float(Some(1.0 / scale))].concat()
        },
        agrees: |a, b| is_near(a.head.scale, b.head.scale),
        is_plain: |spec| spec.head.scale == 1.0,
    },
    Fact {
        key: "expert_weights_scale",
        values: |spec| float(spec.layers.iter().find_map(router).map(|moe| moe.scaling)),
        agrees: |a, b| routers(a, |moe| moe.scaling) == routers(b, |moe| moe.scaling),
        is_plain: |spec| routers(spec, |moe| moe.scaling).iter().all(|x| *x == 1.0),
    },
    Fact {
        key: "expert_weights_norm",
        values: |spec| {
            let moe = spec.layers.iter().find_map(router);
            let normed = moe.map(|moe| Value::Bool(moe.renormalize.is_some()));
            normed.into_iter().collect()
        },
        agrees: |a, b| {
            routers(a, |moe| moe.renormalize.is_some())
                == routers(b, |moe| moe.renormalize.is_some())
        },
        is_plain: |spec| {
            !routers(spec, |moe| moe.renormalize.is_some())
                .into_iter()
                .any(|normed| normed)
        },
    },
    Fact {
        key: "expert_gating_func",
        values: |spec| {
            let moe = spec.layers.iter().find_map(router);
            let number = moe.map(|moe| Value::U32(gating(moe.score)));
            number.into_iter().collect()
        },
        agrees: |a, b| routers(a, |moe| moe.score) == routers(b, |moe| moe.score),
        is_plain: |spec| {
            routers(spec, |moe| moe.score)
                .iter()
                .all(|score| *score == RouterScore::Softmax)
        },
    },
];

/// Adds the keys without which the reader of the file would believe something else; `read` is that reader.
pub(super) fn settle(
    keys: &mut Keys<'_>,
    spec: &ModelSpec,
    read: &dyn Fn(&Metadata) -> Result<ModelSpec, ModelError>,
) {
    supply_needed(keys, spec, read);
    let knows_arch = !matches!(
        read(&keys.metadata),
        Err(ModelError::UnknownModelType { .. })
    );
    for fact in FACTS {
        let is_told = |keys: &Keys<'_>| {
            read(&keys.metadata).is_ok_and(|believed| (fact.agrees)(spec, &believed))
        };
        if !knows_arch {
            if !(fact.is_plain)(spec)
                && let Some(value) = (fact.values)(spec).into_iter().next()
            {
                keys.put(fact.key, value);
            }
            continue;
        }
        if is_told(keys) {
            continue;
        }
        let before = keys.get(fact.key).cloned();
        let told = (fact.values)(spec).into_iter().any(|value| {
            keys.put(fact.key, value);
            is_told(keys)
        });
        if !told {
            keys.restore(fact.key, before);
        }
    }
}

/// Adds what the reader says is missing, as long as that is a fact.
fn supply_needed(
    keys: &mut Keys<'_>,
    spec: &ModelSpec,
    read: &dyn Fn(&Metadata) -> Result<ModelSpec, ModelError>,
) {
    for _ in FACTS {
        let Err(ModelError::MissingKey { key, .. }) = read(&keys.metadata) else {
            return;
        };
        let fact = FACTS.iter().find(|fact| keys.is(fact.key, &key));
        let Some(value) = fact.and_then(|fact| (fact.values)(spec).into_iter().next()) else {
            return;
        };
        keys.metadata.set(key, value);
    }
}

fn float(value: Option<f32>) -> Vec<Value> {
    value.map(Value::F32).into_iter().collect()
}

/// Equal up to a rounding, since one of the two may have been divided by.
fn is_near(a: f32, b: f32) -> bool {
    (a - b).abs() <= f32::EPSILON * a.abs()
}

fn windowed_theta(spec: &ModelSpec) -> Option<f32> {
    ropes(spec)
        .find(|(_, windowed)| *windowed)
        .map(|(rope, _)| rope.theta as f32)
}

fn scale(spec: &ModelSpec) -> Option<f32> {
    let attn = spec.layers.iter().find_map(attention)?;
    Some(attn.scale)
}

fn clip(spec: &ModelSpec) -> Option<f32> {
    spec.layers.iter().find_map(attention)?.clip_qkv
}

fn branches(spec: &ModelSpec) -> Option<f32> {
    spec.layers.first().map(|layer| layer.residual_multiplier)
}

fn routers<T>(spec: &ModelSpec, value: fn(&crate::spec::MoeSpec) -> T) -> Vec<T> {
    spec.layers.iter().filter_map(router).map(value).collect()
}

/// The numbers by which stock tools name a score.
fn gating(score: RouterScore) -> u32 {
    match score {
        RouterScore::Softmax => 1,
        RouterScore::Sigmoid => 2,
        RouterScore::SoftmaxOfChosen => 3,
    }
}

fn windows(spec: &ModelSpec) -> Vec<Option<u32>> {
    let window = |layer| attention(layer).and_then(|attn| attn.window);
    spec.layers.iter().map(window).collect()
}

/// A period, or else the layers one by one.
fn patterns(spec: &ModelSpec) -> Vec<Value> {
    let windows = windows(spec);
    if windows.iter().all(Option::is_none) {
        return Vec::new();
    }
    let flags = windows.iter().map(Option::is_some).collect();
    let period = period(&windows).map(Value::U32);
    let mut values: Vec<Value> = period.into_iter().collect();
    values.push(Value::Array(Array::Bool(flags)));
    values
}

/// The smallest `p` such that exactly every `p`-th layer is without a window, if some are with and some without.
fn period(windows: &[Option<u32>]) -> Option<u32> {
    let first = windows.iter().position(Option::is_none)? + 1;
    let fits = windows
        .iter()
        .enumerate()
        .all(|(i, window)| window.is_none() == ((i + 1) % first == 0));
    (fits && first > 1).then_some(first as u32)
}

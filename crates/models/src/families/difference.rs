//! What two specs say differently, leaf by leaf.
//!
//! Numbers that differ by no more than a container's rounding are the same: GGUF metadata hold f32, and a factor may have
//! been divided by another one. Llama 3's rule is the divisors that it gives.

use serde_json::Value;

use super::by_name;
use crate::spec::{AttentionSpec, Mixer, ModelSpec, RopeScaling, RopeSpec};
use crate::to_gguf::divisors;

/// Relative error of a divisor that a converter computed in f32. The exponent `2 i / dims` is rounded, which moves a
/// frequency by up to `ln(theta) * 2^-24`, some `8e-7`; a divisor of up to 32 that lies between fast and slow pairs moves
/// by 4/3 of that times itself.
pub(super) const DIVISOR_ERROR: f64 = 1e-4;

/// The first leaf that differs, with what `a` has and what `b` has. That another row of the family table reads the same
/// GGUF files is no difference.
pub(crate) fn first_difference(a: &ModelSpec, b: &ModelSpec) -> Option<String> {
    differences(a, b).into_iter().next()
}

/// Every leaf that differs.
pub(crate) fn differences(a: &ModelSpec, b: &ModelSpec) -> Vec<String> {
    let mut b = b.clone();
    let arch = |spec: &ModelSpec| by_name(&spec.family).map(|family| family.gguf_arch);
    if arch(a) == arch(&b) {
        b.family.clone_from(&a.family);
    }
    let mut a = a.clone();
    for (ours, theirs) in ropes(&mut a).zip(ropes(&mut b)) {
        align(ours, theirs);
    }
    let json = |spec: &ModelSpec| serde_json::to_value(spec).unwrap_or(Value::Null);
    let mut found = Vec::new();
    compare("", &json(&a), &json(&b), &mut found);
    found
}

/// Whether a rope divides its frequencies by these numbers, up to the rounding of who computed them.
pub(crate) fn divisors_agree(rope: &RopeSpec, given: &[f32]) -> bool {
    let own = divisors(rope);
    own.len() == given.len()
        && own.iter().zip(given).all(|(own, given)| {
            let (own, given) = (f64::from(*own), f64::from(*given));
            (own - given).abs() <= DIVISOR_ERROR * own
        })
}

/// One entry per layer, so that those of two specs can be paired.
fn ropes(spec: &mut ModelSpec) -> impl Iterator<Item = Option<&mut RopeSpec>> {
    spec.layers.iter_mut().map(|layer| match &mut layer.mixer {
        Mixer::Attention(AttentionSpec { rope, .. }) => rope.as_mut(),
        Mixer::Mla(mla) => mla.rope.as_mut(),
        Mixer::Kda(_) | Mixer::GatedDelta(_) => None,
    })
}

/// Writes out Llama 3's rule as divisors, those of the other where they are the same.
fn align(ours: Option<&mut RopeSpec>, theirs: Option<&mut RopeSpec>) {
    let write_out = |rope: &mut RopeSpec| {
        if let RopeScaling::Llama3 { .. } = rope.scaling {
            rope.scaling = RopeScaling::Divisors {
                divisors: divisors(rope),
            };
        }
    };
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        return;
    };
    if ours.scaling == theirs.scaling {
        return;
    }
    write_out(ours);
    write_out(theirs);
    if let RopeScaling::Divisors { divisors } = &ours.scaling
        && let RopeScaling::Divisors { .. } = theirs.scaling
        && divisors_agree(theirs, divisors)
    {
        theirs.scaling.clone_from(&ours.scaling);
    }
}

/// Lists leaves that differ by more than the rounding to f32.
fn compare(at: &str, ours: &Value, theirs: &Value, found: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            for (key, ours) in a {
                let dot = if at.is_empty() { "" } else { "." };
                compare(&format!("{at}{dot}{key}"), ours, &b[key], found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (ours, theirs)) in a.iter().zip(b).enumerate() {
                compare(&format!("{at}[{i}]"), ours, theirs, found);
            }
        }
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (
                a.as_f64().unwrap_or(f64::NAN),
                b.as_f64().unwrap_or(f64::NAN),
            );
            // Not `>`: what is no number differs from everything.
            let is_same = (a - b).abs() <= f64::from(f32::EPSILON) * a.abs();
            if !is_same {
                found.push(format!("{at} is {a} and would be {b}"));
            }
        }
        (ours, theirs) if ours == theirs => {}
        (ours, theirs) => found.push(format!("{at} is {ours} and would be {theirs}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;

    fn spec(name: &str) -> ModelSpec {
        let checkpoint = Checkpoint::open(&larql_testkit::parity_fixture(name)).unwrap();
        checkpoint.spec().clone()
    }

    fn change(spec: &mut ModelSpec, edit: impl Fn(&mut AttentionSpec)) {
        for layer in &mut spec.layers {
            if let Mixer::Attention(attention) = &mut layer.mixer {
                edit(attention);
            }
        }
    }

    #[test]
    fn the_first_leaf_is_named_with_both_values() {
        let a = spec("mistral-sliding");
        let mut b = a.clone();
        assert_eq!(first_difference(&a, &b), None);
        change(&mut b, |attention| attention.window = Some(10));
        b.d_vocab += 1;
        let found = differences(&a, &b);
        assert_eq!(found.len(), 1 + a.layers.len());
        assert_eq!(
            first_difference(&a, &b).as_deref(),
            Some("d_vocab is 300 and would be 301")
        );
        assert_eq!(found[1], "layers[0].mixer.window is 9 and would be 10");
    }

    #[test]
    fn rounding_is_no_difference_and_a_step_more_is_one() {
        let a = spec("granite");
        let mut b = a.clone();
        b.head.scale = f32::from_bits(a.head.scale.to_bits() + 1);
        assert_eq!(first_difference(&a, &b), None);
        b.head.scale = f32::from_bits(a.head.scale.to_bits() + 4);
        assert!(
            first_difference(&a, &b)
                .unwrap()
                .starts_with("head.scale is")
        );
    }

    #[test]
    fn a_family_whose_files_are_read_by_the_same_reader_is_no_difference() {
        let a = spec("llama");
        let mut b = a.clone();
        b.family = "mistral".to_owned();
        assert_eq!(first_difference(&a, &b), None);
        b.family = "qwen2".to_owned();
        let found = first_difference(&a, &b).unwrap();
        assert_eq!(found, "family is \"llama\" and would be \"qwen2\"");
    }

    #[test]
    fn a_rule_is_the_divisors_that_it_gives() {
        let rule = spec("llama-rope3");
        let mut list = rule.clone();
        let stretch = |by: f32| {
            move |attention: &mut AttentionSpec| {
                if let Some(rope) = &mut attention.rope {
                    let divisors = divisors(rope).iter().map(|d| d * by).collect();
                    rope.scaling = RopeScaling::Divisors { divisors };
                }
            }
        };
        change(&mut list, stretch(1.0 + 2e-5));
        assert_eq!(first_difference(&rule, &list), None);
        assert_eq!(first_difference(&list, &rule), None);
        change(&mut list, stretch(1.001));
        let found = first_difference(&rule, &list).unwrap();
        assert!(
            found.starts_with("layers[0].mixer.rope.scaling.divisors[0] is 1"),
            "{found}"
        );
    }
}

//! What transformers takes a GGUF file to be otherwise than a spec says, whatever the file states.
//!
//! Its reader translates a list of metadata keys for each architecture and leaves the rest to the defaults of the class, so
//! a model that differs from them answers plausibly and otherwise. This is what its list of Gemma 3 leaves out, which was
//! compared with the reader of transformers 5.24. Nothing is known here of other architectures: no sentence about one does
//! not mean that it is read whole. The folder that an export writes has no such gap.

use super::by_name;
use crate::spec::{AttentionSpec, Mixer, ModelSpec, RopeScaling};

/// The architecture whose list was compared.
const ARCH: &str = "gemma3";

/// Factor on scores of the class: `query_pre_attn_scalar` is 256.
const SCALE: f32 = 0.0625;

/// The last of each so many layers of the class has no window.
const PERIOD: usize = 6;

/// Base of the layers with a window in the class.
const LOCAL_THETA: f64 = 10_000.0;

/// What transformers takes to be otherwise, in one sentence that begins with its name; none where it reads the model whole.
pub(crate) fn taken_otherwise(spec: &ModelSpec) -> Option<String> {
    if by_name(&spec.family).is_none_or(|family| family.gguf_arch != ARCH) {
        return None;
    }
    let layers: Vec<&AttentionSpec> = spec
        .layers
        .iter()
        .filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Mla(_) | Mixer::GatedDelta(_) | Mixer::Kda(_) => None,
        })
        .collect();
    let mut unread = Vec::new();
    if layers.iter().any(|layer| layer.scale != SCALE) {
        unread.push("the scale of scores (query_pre_attn_scalar)");
    }
    let is_full = |i: usize| (i + 1).is_multiple_of(PERIOD);
    if (0..)
        .zip(&layers)
        .any(|(i, layer)| layer.window.is_none() != is_full(i))
    {
        unread.push("which layers have a window");
    }
    let ropes = || {
        layers
            .iter()
            .filter_map(|layer| Some((layer, layer.rope.as_ref()?)))
    };
    if ropes().any(|(layer, rope)| layer.window.is_some() && rope.theta != LOCAL_THETA) {
        unread.push("the base of RoPE in layers with a window");
    }
    if ropes().any(|(_, rope)| rope.scaling != RopeScaling::Unscaled) {
        unread.push("the scaling of RoPE");
    }
    let (last, before) = unread.split_last()?;
    let list = match before {
        [] => (*last).to_owned(),
        before => format!("{} and {last}", before.join(", ")),
    };
    Some(format!(
        "transformers does not read {list} from a GGUF file of this architecture: without the config of the checkpoint (from_pretrained(.., gguf_file=.., config=..)) its logits are others"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::checkpoint::Checkpoint;

    fn spec(name: &str) -> ModelSpec {
        let checkpoint = Checkpoint::open(&larql_testkit::parity_fixture(name)).unwrap();
        checkpoint.spec().clone()
    }

    fn said(unread: &str) -> Option<String> {
        Some(format!(
            "transformers does not read {unread} from a GGUF file of this architecture: without the config of the checkpoint (from_pretrained(.., gguf_file=.., config=..)) its logits are others"
        ))
    }

    /// A Gemma 3 that has all that the class takes for granted.
    fn of_the_class() -> ModelSpec {
        let mut spec = spec("gemma3");
        let windowed = spec.layers[0].clone();
        let full = spec.layers.iter().find(|layer| match &layer.mixer {
            Mixer::Attention(attention) => attention.window.is_none(),
            Mixer::Mla(_) | Mixer::GatedDelta(_) | Mixer::Kda(_) => false,
        });
        let full = full.unwrap().clone();
        spec.layers = (1..=13)
            .map(|nth| if nth % 6 == 0 { &full } else { &windowed }.clone())
            .collect();
        edit(&mut spec, 0..13, |attention| attention.scale = 0.0625);
        spec
    }

    fn edit(
        spec: &mut ModelSpec,
        layers: std::ops::Range<usize>,
        how: impl Fn(&mut AttentionSpec),
    ) {
        for layer in &mut spec.layers[layers] {
            if let Mixer::Attention(attention) = &mut layer.mixer {
                how(attention);
            }
        }
    }

    #[test]
    fn what_the_reader_leaves_to_the_class_is_named_where_it_matters() {
        assert_eq!(taken_otherwise(&of_the_class()), None);
        assert_eq!(
            taken_otherwise(&spec("gemma3")),
            said("the scale of scores (query_pre_attn_scalar) and which layers have a window")
        );
        let mut shifted = of_the_class();
        shifted.layers.remove(0);
        assert_eq!(
            taken_otherwise(&shifted),
            said("which layers have a window")
        );
        let mut based = of_the_class();
        edit(&mut based, 3..4, |attention| {
            attention.rope.as_mut().unwrap().theta = 20_000.0;
        });
        assert_eq!(
            taken_otherwise(&based),
            said("the base of RoPE in layers with a window")
        );
        let mut stretched = of_the_class();
        edit(&mut stretched, 5..6, |attention| {
            attention.rope.as_mut().unwrap().scaling = RopeScaling::Linear { factor: 8.0 };
        });
        assert_eq!(taken_otherwise(&stretched), said("the scaling of RoPE"));
        assert_eq!(taken_otherwise(&spec("gemma2")), None);
    }
}

//! Kernels for x86-64 with AVX2, FMA and F16C.
//!
//! Dots are written with intrinsics; element-wise functions and decoders are the portable bodies,
//! compiled here with wider registers.  Both follow the scalar order of operations, so every result
//! has the scalar bits.
//!
//! The functions in the table are safe to call only on a CPU with these features; [`kernels`] is
//! the one way to the table and checks that.

#![expect(
    unsafe_code,
    reason = "calls functions that are compiled for CPU features checked at run time"
)]

mod asymmetric;
mod decode;
mod float;
mod read;
pub(super) mod registers;
mod tile_decode;
mod tile_floats;
mod tile_one;
pub(super) mod tile_weights;
pub(super) mod tiles;
mod unpack;
mod values;

use super::scalar::{float as portable, quantize};
use super::{
    AsymmetricDots, Isa, Kernels, PlainDots, StoredWeighs, Weighs, by_positions, integer_table,
    tile_dots,
};
use crate::activations::{AsymmetricMut, QuantizedMut};

/// The table, if this CPU has the features.
pub(super) fn kernels() -> Option<&'static Kernels> {
    let has_features = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    has_features.then_some(&KERNELS)
}

/// A portable body, compiled with the features of this set.
///
/// The features reach what is `inline(always)` and no further: a body that does its arithmetic in a
/// closure under, say, `array::from_fn` is right but slow here.
macro_rules! recompiled {
    ($body:path, |$($arg:ident: $type:ty),*|) => {{
        #[target_feature(enable = "avx2,fma,f16c")]
        fn body($($arg: $type),*) {
            $body($($arg),*)
        }
        |$($arg),*| {
            // SAFETY: the table is reachable only through `kernels`, which checked the features.
            unsafe { body($($arg),*) }
        }
    }};
}

pub(super) static KERNELS: Kernels = Kernels {
    isa: Isa::Avx2,
    decode: decode::decode,
    dot: float::dot,
    axpy: recompiled!(portable::axpy, |alpha: f32, x: &[f32], y: &mut [f32]|),
    exp_in_place: recompiled!(portable::exp_in_place, |x: &mut [f32]|),
    softmax_in_place: recompiled!(portable::softmax_in_place, |x: &mut [f32]|),
    silu_mul: recompiled!(portable::silu_mul, |gate: &mut [f32], up: &[f32]|),
    gelu_tanh_mul: recompiled!(portable::gelu_tanh_mul, |gate: &mut [f32], up: &[f32]|),
    scale: recompiled!(portable::scale, |x: &[f32],
                                         weight: Option<&[f32]>,
                                         scale: f32,
                                         out: &mut [f32]|),
    layer_norm: recompiled!(portable::layer_norm, |x: &[f32],
                                                   weight: &[f32],
                                                   bias: Option<&[f32]>,
                                                   eps: f32,
                                                   out: &mut [f32]|),
    quantize: recompiled!(quantize::blocks, |x: &[f32], out: &mut QuantizedMut<'_>|),
    quantize_asymmetric: recompiled!(quantize::asymmetric, |x: &[f32],
                                                            out: &mut AsymmetricMut<'_>|),
    integer: integer_table!(tiles),
    asymmetric: AsymmetricDots {
        one: asymmetric::q8_0,
        abreast: asymmetric::q8_0,
        two: asymmetric::q8_0,
        four: asymmetric::q8_0,
    },
    decode_tile: tile_decode::decode,
    decode_pair: tile_decode::decode,
    floats: by_positions!(tile_floats::floats),
    plain: PlainDots {
        one: tile_floats::plain_dots,
        two: tile_floats::plain_dots,
        four: tile_floats::plain_dots,
        abreast: tile_floats::plain_dots,
        abreast_two: tile_floats::plain_dots,
        abreast_four: tile_floats::plain_dots,
        places: tile_floats::plain_dots,
    },
    read: read::add_up,
    weigh: Weighs {
        one: values::weigh,
        two: values::weigh,
        four: values::weigh,
    },
    weigh_stored: StoredWeighs {
        one: values::weigh_stored,
        two: values::weigh_stored,
        four: values::weigh_stored,
    },
};

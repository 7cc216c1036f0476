//! The specification of every kernel, in plain loops and safe code.
//!
//! These functions run on any machine.  The bodies that other instruction sets reuse, compiled
//! with their registers, are `inline(always)` for that purpose.

mod asymmetric;
pub(crate) mod decode;
pub(crate) mod float;
pub(crate) mod quantize;
pub(crate) mod read;
pub(crate) mod tiles;

use super::{
    AsymmetricDots, Isa, Kernels, PlainDots, StoredWeighs, Weighs, by_positions, integer_table,
    tile_dots,
};

pub(crate) static KERNELS: Kernels = Kernels {
    isa: Isa::Scalar,
    decode: |format, bytes, out| decode::decode(format, bytes, out),
    dot: float::dot,
    axpy: |alpha, x, y| float::axpy(alpha, x, y),
    exp_in_place: |x| float::exp_in_place(x),
    softmax_in_place: |x| float::softmax_in_place(x),
    silu_mul: |gate, up| float::silu_mul(gate, up),
    gelu_tanh_mul: |gate, up| float::gelu_tanh_mul(gate, up),
    scale: |x, weight, scale, out| float::scale(x, weight, scale, out),
    layer_norm: |x, weight, bias, eps, out| float::layer_norm(x, weight, bias, eps, out),
    quantize: |x, out| quantize::blocks(x, out),
    quantize_asymmetric: |x, out| quantize::asymmetric(x, out),
    integer: integer_table!(tiles),
    asymmetric: AsymmetricDots {
        one: asymmetric::q8_0,
        abreast: asymmetric::q8_0,
        two: asymmetric::q8_0,
        four: asymmetric::q8_0,
    },
    decode_tile: tiles::decode,
    decode_pair: tiles::decode,
    floats: by_positions!(tiles::floats),
    plain: PlainDots {
        one: tiles::plain_dots,
        two: tiles::plain_dots,
        four: tiles::plain_dots,
        abreast: tiles::plain_dots,
        abreast_two: tiles::plain_dots,
        abreast_four: tiles::plain_dots,
        places: tiles::plain_dots,
    },
    read: read::add_up,
    weigh: Weighs {
        one: float::weigh,
        two: float::weigh,
        four: float::weigh,
    },
    weigh_stored: StoredWeighs {
        one: float::weigh_stored,
        two: float::weigh_stored,
        four: float::weigh_stored,
    },
};
